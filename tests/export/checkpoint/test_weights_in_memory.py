"""What an export holds in memory and in files."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import benchmarks
from export.checkpoint import weight_files
from export.checkpoint.memory import needed_bytes
from export.checkpoint.weight_files import tensors_in
from export.graphs.source_model import SourceModel
from inference.process_limits import return_memory
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED

MIB = 1 << 20


class _Tied(nn.Module):
    """A table that is registered thrice: twice as it was made, once as it is registered."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        table = nn.Parameter(torch.arange(rows * width).reshape(rows, width).float())
        self.first, self.second = table, table
        self.third = self.first
        self.register_buffer("positions", torch.arange(rows * width))
        self.small = nn.Parameter(torch.ones(3))


def held_bytes() -> int:
    """Memory of this process without pages of mapped files."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def test_values_and_ties_are_those_of_the_module(tmp_path: Path) -> None:
    expected = _Tied(512, 1024)
    with tensors_in(tmp_path):
        module = _Tied(512, 1024)
    assert module.first is module.second is module.third
    assert isinstance(module.first, nn.Parameter)
    assert module.first.requires_grad
    for name, value in expected.state_dict().items():
        assert torch.equal(value, module.state_dict()[name]), name
    assert next(tmp_path.iterdir(), None) is None  # the file has no name


def test_weights_are_not_held_in_memory(tmp_path: Path) -> None:
    for _ in range(2):  # what the first frees, the C library keeps for the second
        before = held_bytes()
        with tensors_in(tmp_path):
            layer = nn.Linear(4096, 4096)  # 64 MiB
            layer.weight.data.fill_(1.0)
        assert held_bytes() - before < 8 * MIB
    assert float(layer.weight.detach()[7, 7]) == 1.0


def test_modules_registered_later_are_left_alone(tmp_path: Path) -> None:
    with tensors_in(tmp_path):
        pass
    return_memory()  # what earlier tests freed could hold the weights
    before = held_bytes()
    layer = nn.Linear(4096, 4096)
    layer.weight.data.fill_(1.0)
    assert held_bytes() - before > 48 * MIB


def test_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"), tensors_in(tmp_path):
        nn.Linear(1024, 1024)


@pytest.mark.parametrize("name", ["gpt2", "bart", "idefics3"])
def test_checkpoint_is_read_into_a_file_as_into_memory(
    name: str, twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "LEAST_BYTES", 1)
    twin = twins(name, EXPORTED)
    source = SourceModel(twin.checkpoint, twin.architecture, scratch=tmp_path)
    wanted, given = twin.network.state_dict(), source.network.state_dict()
    assert wanted.keys() == given.keys()
    assert all(torch.equal(value, given[path]) for path, value in wanted.items())
    tied = [len({id(p) for p in each.parameters()}) for each in (twin.network, source.network)]
    assert tied[0] == tied[1]


def test_no_random_weights_are_drawn_for_a_checkpoint(twins: Twins, tmp_path: Path) -> None:
    twin = twins("gpt2", EXPORTED)
    before = torch.random.get_rng_state()
    network = SourceModel(twin.checkpoint, twin.architecture, scratch=tmp_path).network
    assert torch.equal(torch.random.get_rng_state(), before)
    wanted = twin.network.state_dict()
    assert all(torch.equal(wanted[name], each) for name, each in network.state_dict().items())
    nn.Linear(3, 3)
    assert not torch.equal(torch.random.get_rng_state(), before)  # but others are


MEASURED = Path(benchmarks.__file__).parent / "results" / "full_size_memory.json"


def test_estimate_is_near_what_was_held() -> None:
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    assert not [row["name"] for row in rows if row["error"]]
    ratios = {
        f"{row['name']} {row['precision']} {row['runtime']}": needed_bytes(4 * row["parameters"])
        / row["held_bytes"]
        for row in rows
    }
    far = {name: ratio for name, ratio in ratios.items() if not 0.8 <= ratio <= 1.5}
    assert far.keys() == {
        "visualbert-vqa fp32 onnxruntime",  # 1.53
        "siglip2-so400m-patch14-224 fp32 onnxruntime",  # two towers in turn
    }
