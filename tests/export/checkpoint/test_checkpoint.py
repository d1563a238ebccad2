"""Checkpoints are read strictly; every defect raises one clear message."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.load_network import load
from export.graphs.source_model import SourceModel
from export.registry import architecture
from inference.errors import CheckpointError
from tests.export.conftest import Twins


@pytest.fixture
def folder(twins: Twins, tmp_path: Path) -> Path:
    """A valid Marian checkpoint for tests to damage."""
    copied = tmp_path / "checkpoint"
    shutil.copytree(twins("marian", "plain").checkpoint.folder, copied)
    return copied


def _load(folder: Path) -> torch.nn.Module:
    return SourceModel.open(folder).network


def _tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def _save(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors")


def _edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_unexpected_and_misshaped_are_listed_together(folder: Path) -> None:
    tensors = _tensors(folder)
    del tensors["model.encoder.layers.0.fc1.bias"]
    tensors["model.encoder.layers.7.fc9.weight"] = torch.zeros(2, 3)
    tensors["model.decoder.layers.1.fc2.weight"] = torch.zeros(4, 5)
    _save(folder, tensors)
    with pytest.raises(CheckpointError) as caught:
        _load(folder)
    message = caught.value.message
    assert "missing: model.encoder.layers.0.fc1.bias 48" in message
    assert "unexpected: model.encoder.layers.7.fc9.weight 2×3" in message
    assert "misshaped: model.decoder.layers.1.fc2.weight 4×5, expected 32×40" in message


def test_layer_beyond_the_configuration_is_unexpected(folder: Path) -> None:
    tensors = _tensors(folder)
    tensors["model.encoder.layers.5.fc1.bias"] = torch.zeros(48)
    _save(folder, tensors)
    with pytest.raises(CheckpointError, match=r"unexpected: model.encoder.layers.5.fc1.bias"):
        _load(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -10])
def test_truncated_weights_are_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        _load(folder)


def test_quantised_weights_are_refused(folder: Path) -> None:
    tensors = _tensors(folder)
    tensors["model.encoder.layers.0.fc1.bias"] = torch.zeros(48, dtype=torch.int8)
    _save(folder, tensors)
    with pytest.raises(CheckpointError, match="not floating point"):
        _load(folder)


def test_half_precision_on_disk_becomes_float32(folder: Path) -> None:
    wanted = {name: tensor.half() for name, tensor in _tensors(folder).items()}
    _save(folder, wanted)
    network = _load(folder)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    table = dict(network.named_parameters())["encoder.embedding.tokens.weight"]
    assert torch.equal(table, wanted["model.shared.weight"].float())


def test_tied_weights_stored_twice_must_agree(folder: Path) -> None:
    tensors = _tensors(folder)
    tensors["lm_head.weight"] = tensors["model.shared.weight"].clone()
    _save(folder, tensors)
    _load(folder)
    tensors["lm_head.weight"][0, 0] += 1
    _save(folder, tensors)
    with pytest.raises(CheckpointError, match="contradicting: "):
        _load(folder)


def test_sharded_weights_are_read(folder: Path) -> None:
    tensors = _tensors(folder)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    _load(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b.safetensors is missing"):
        _load(folder)


def test_tied_weights_are_one_tensor_in_memory(folder: Path) -> None:
    network = _load(folder)
    stored = {tensor.data_ptr() for tensor in network.state_dict().values() if tensor.ndim == 2}
    tables = [t for t in network.state_dict().values() if t.shape == (64, 32)]
    assert len(tables) > 1
    assert len({table.data_ptr() for table in tables}) == 1
    assert len(stored) < sum(tensor.ndim == 2 for tensor in network.state_dict().values())


def test_file_is_mapped_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mapping of a file would keep all of its pages in memory beside the network."""
    opened: list[Path] = []
    alive: list[weakref.ref[Tensor]] = []

    def counted(path: Path, framework: str) -> Any:
        assert sum(tensor() is not None for tensor in alive) <= 1  # the last, which is in use
        opened.append(path)
        return safe_open(path, framework=framework)

    monkeypatch.setattr("export.checkpoint.weight_files.safe_open", counted)
    monkeypatch.setattr("export.checkpoint.weight_files._MAPPED_BYTES", 1)
    want, count = _tensors(folder), 0
    for name, tensor in open_checkpoint(str(folder)).tensors():
        assert torch.equal(tensor, want[name])
        alive.append(weakref.ref(tensor))
        count += 1
    assert count == len(want)
    assert len(opened) == 1 + len(want)  # once for the names


def test_tied_table_that_the_file_lacks_is_never_allocated_twice(
    twins: Twins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(twins("m2m_100", "plain").checkpoint.folder, folder)
    _save(folder, {n: t for n, t in _tensors(folder).items() if n != "lm_head.weight"})
    checkpoint = open_checkpoint(str(folder))
    declared = architecture(checkpoint.config["model_type"])
    config = declared.read_config(checkpoint.config)
    network = declared.build(config)
    while_loading: list[bool] = []
    read = Checkpoint.tensors

    def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
        state = network.state_dict(keep_vars=True)
        while_loading.append(state["decoder.output"] is state["encoder.embedding.tokens.weight"])
        yield from read(checkpoint)

    monkeypatch.setattr(Checkpoint, "tensors", tensors)
    load(network, checkpoint, declared.rename(config))
    assert while_loading == [True]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_any_value_that_is_not_finite_is_found(folder: Path, value: float) -> None:
    tensors = _tensors(folder)
    tensors["model.shared.weight"][3, 5] = value
    _save(folder, tensors)
    with pytest.raises(CheckpointError, match=r"not finite: model.shared.weight"):
        _load(folder)


def test_value_beyond_float32_is_found(folder: Path) -> None:
    tensors = _tensors(folder)
    tensors["model.shared.weight"] = tensors["model.shared.weight"].double()
    tensors["model.shared.weight"][3, 5] = 1e300
    _save(folder, tensors)
    with pytest.raises(CheckpointError, match=r"not finite: model.shared.weight"):
        _load(folder)


def test_pickled_weights_are_refused_with_advice(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="convert it to safetensors first"):
        _load(folder)


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no weights: expected model.safetensors"):
        _load(folder)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null"])
def test_damaged_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json"):
        open_checkpoint(str(folder))


def test_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        open_checkpoint(str(tmp_path))


def test_impossible_hub_name_is_refused_without_a_request() -> None:
    with pytest.raises(CheckpointError, match="cannot be a name on the hub"):
        open_checkpoint("/no/such/folder")


def test_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise OSError("no route to host\nmany more lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint("Helsinki-NLP/opus-mt-es-en")
    assert caught.value.message.endswith("hub did not return it: no route to host")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"normalize_before": True},
        {"normalize_embedding": True},
        {"static_position_embeddings": False},
        {"activation_function": "mish"},
        {"d_model": "wide"},
        {"encoder_layers": 0},
        {"decoder_attention_heads": 5},
        {"scale_embedding": "yes"},
        {"tie_word_embeddings": False},
    ],
)
def test_unsupported_marian_field_is_refused_by_name(folder: Path, change: dict) -> None:
    _edit_config(folder, **change)
    with pytest.raises(CheckpointError, match=next(iter(change)).split("_")[0]):
        _load(folder)


def test_spare_name_of_a_tensor_is_used_only_where_the_other_is_missing(
    twins: Twins, tmp_path: Path
) -> None:
    """An untied head's bias: `transformers` 5 saves two, older versions the first alone."""
    copied = tmp_path / "untied"
    shutil.copytree(twins("bert", "untied").checkpoint.folder, copied)
    tensors = _tensors(copied)
    own, spare = tensors["cls.predictions.decoder.bias"], tensors["cls.predictions.bias"]
    assert not torch.equal(own, spare)
    assert torch.equal(_load(copied).state_dict()["masked.output.bias"], own)
    del tensors["cls.predictions.decoder.bias"]
    _save(copied, tensors)
    assert torch.equal(_load(copied).state_dict()["masked.output.bias"], spare)
