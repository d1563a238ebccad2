"""A checkpoint may come from anywhere: its code is not run, and nothing outside its folder read."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.load_network import load_network, network_bytes
from export.checkpoint.memory import limit_bytes, needed_bytes
from export.registry import architecture, families
from export.tokenizer.tokenizer import fast_tokenizer
from inference.errors import CheckpointError, SetupError
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED
from tests.programs import run_program
from tests.traced_memory import memory_below

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


@pytest.fixture
def folder(twins: Twins, tmp_path: Path) -> Path:
    copied = tmp_path / "checkpoint"
    shutil.copytree(twins("gpt2", EXPORTED).checkpoint.folder, copied)
    return copied


def edit(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def read(folder: Path, limit: int | None = None) -> nn.Module:
    return read_checkpoint(open_checkpoint(str(folder)), limit)


def read_checkpoint(checkpoint: Checkpoint, limit: int | None = None) -> nn.Module:
    declared = architecture(checkpoint.config["model_type"])
    config = declared.configuration(checkpoint)
    build = partial(declared.build, config)
    return load_network(build, checkpoint, declared.rename(config), limit)


# --------------------------------------------------------------------------------------------- code


def test_code_of_a_checkpoint_does_not_run_even_when_the_answer_is_yes(
    folder: Path, tmp_path: Path
) -> None:
    proof = tmp_path / "ran"
    code = f"open({str(proof)!r}, 'w').close()\nclass Own: pass\nclass OwnConfig: pass\n"
    (folder / "own.py").write_text(code)
    names = {"AutoTokenizer": ["own.Own", None], "AutoConfig": "own.OwnConfig"}
    edit(folder, "config.json", auto_map=names, model_type="rnn-lm")  # one of ours
    edit(folder, "tokenizer_config.json", auto_map=names, tokenizer_class="Own")
    program = (
        "import sys\n"
        "from export.checkpoint.checkpoint import open_checkpoint\n"
        "from export.tokenizer.tokenizer import fast_tokenizer\n"
        "print(len(fast_tokenizer(open_checkpoint(sys.argv[1]))[1]))\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    options = {"input": "y\n" * 9, "cwd": ROOT, "env": os.environ | environment}
    printed = run_program(sys.executable, "-c", program, str(folder), **options)
    assert printed == "1\n"  # the tokenizer's file, as it is
    assert not proof.exists()


def test_every_automatic_class_of_transformers_is_called_without_trust() -> None:
    """Without the argument `transformers` asks on the terminal whether to run a folder's code."""
    unsafe, safe = [], 0
    for part in ("examples", "export", "inference", "serving", "clients", "benchmarks"):
        for path in (ROOT / part).rglob("*.py"):
            for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
                trusts = [each for each in call.keywords if each.arg == "trust_remote_code"]
                if len(trusts) == 1 and ast.unparse(trusts[0].value) == "False":
                    safe += 1
                else:
                    unsafe.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert unsafe == []
    assert safe


def calls(tree: ast.AST) -> list[ast.Call]:
    """Calls that could run a folder's code: `Auto….from_…` and those of `LOADERS`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            *owner, name = ast.unparse(node.func).split(".")
            is_automatic = name.startswith("from_") and owner and owner[-1].startswith("Auto")
            is_loader = name in LOADERS and owner in ([], ["transformers"])
            if is_automatic or is_loader:
                found.append(node)
    return found


LOADERS = {"pipeline", "SentenceTransformer", "CrossEncoder", "load_dataset"}


# --------------------------------------------------------------------------------------------- size


def test_all_networks_can_be_planned_without_memory(twins: Twins) -> None:
    for name in families():
        twin = twins(name, EXPORTED)
        config = twin.architecture.read_config(twin.checkpoint.config)
        with torch.device("meta"):
            planned = twin.architecture.build(config)
        build = partial(twin.architecture.build, config)
        loaded = load_network(build, twin.checkpoint, twin.architecture.rename(config))
        assert network_bytes(planned) >= network_bytes(loaded), name  # tied when loaded
        for path, value in loaded.state_dict().items():
            assert torch.equal(value, twin.network.state_dict()[path]), (name, path)


def test_enormous_vocabulary_is_refused_before_it_is_allocated(folder: Path) -> None:
    edit(folder, "config.json", vocab_size=10**9)
    with pytest.raises(CheckpointError, match=r"wte.weight 64×30, expected 1000000000"):
        read(folder)


@pytest.mark.parametrize("name", families())
def test_enormous_number_of_layers_is_refused_before_they_are_built(
    name: str, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of a billion entries would take 8 GB, before any weight is read.

    Most are built up to a lower bound on parameters, which takes a quarter of the time.
    """
    if name != "marian":
        monkeypatch.setattr("export.checkpoint.load_network._SPARE_PARAMETERS", 100)
        monkeypatch.setattr("export.checkpoint.load_network._PARAMETERS_PER_TENSOR", 3)
    checkpoint = twins(name, EXPORTED).checkpoint
    changes = {
        place: config
        for place, config in enormous_layers(checkpoint.config)
        if (name, place) not in UNREAD
    }
    assert changes or name in WITHOUT_LAYERS
    with memory_below(100e6):
        for config in changes.values():
            with pytest.raises(CheckpointError, match=r"layers|describes more than|must be"):
                read_checkpoint(replace(checkpoint, config=config))


WITHOUT_LAYERS = {"bahdanau", "show-and-tell", "show-attend-tell"}
UNREAD = {(name, "num_layers") for name in ("swin", "swinv2")}
UNREAD |= {(name, "max_window_layers") for name in ("qwen2", "qwen3", "smollm3")}
UNREAD |= {("smollm3", "no_rope_layers"), ("lxmert", "num_hidden_layers")}  # others are read
UNREAD |= {("switch_transformers", f"num_sparse_{side}_layers") for side in ("encoder", "decoder")}
_OF_SPEECH = ("speech_encoder", "num_adapter", "t2u_encoder", "t2u_decoder")
UNREAD |= {("seamless_m4t", f"{part}_layers") for part in _OF_SPEECH}
UNREAD |= {("grounding-dino", "backbone_config.num_layers")}
UNREAD |= {(name, "vision_config.num_hidden_layers") for name in ("align", "groupvit")}
_QWENS = ("qwen2_vl", "qwen2_5_vl", "internvl", "llava_onevision")
UNREAD |= {(name, "text_config.max_window_layers") for name in _QWENS}
"""Fields that nothing is built from: `depths` counts Swin's layers."""


def enormous_layers(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(field, the configuration with a billion there) of each number of layers."""
    for field, value in config.items():
        if isinstance(value, dict):
            for place, changed in enormous_layers(value):
                yield f"{field}.{place}", config | {field: changed}
        elif type(value) is int and value > 0 and COUNT.search(field):
            yield field, config | {field: 10**9}
        elif isinstance(value, list) and COUNTS.search(field):
            yield field, config | {field: [10**9] * len(value)}


COUNT = re.compile(r"layers?$|depth$|num_blocks|self_attends_per_block")
COUNTS = re.compile(r"layers$|depths$")


def test_enormous_dense_module_is_refused_before_it_is_allocated(
    twins: Twins, tmp_path: Path
) -> None:
    from export.text_encoders.sentence_transformers import read_pooling

    copied = tmp_path / "sentences"
    shutil.copytree(twins("bert", EXPORTED).checkpoint.folder, copied)
    kinds = {"": "Transformer", "1": "Pooling", "2": "Dense"}
    modules = [{"type": f"st.models.{kind}", "path": path} for path, kind in kinds.items()]
    (copied / "modules.json").write_text(json.dumps(modules))
    for name in ("1", "2"):
        (copied / name).mkdir()
    (copied / "1" / "config.json").write_text("{}")
    settings = {"in_features": 32, "out_features": 10**9}
    (copied / "2" / "config.json").write_text(json.dumps(settings))
    save_file(
        {"linear.weight": torch.zeros(4, 32), "linear.bias": torch.zeros(4)},
        copied / "2" / "model.safetensors",
    )
    with pytest.raises(CheckpointError, match=r"misshaped: linear.weight 4×32"):
        read_pooling(open_checkpoint(str(copied)), 32)


@pytest.mark.parametrize(
    "change", [{"num_labels": 2**31 - 1}, {"text_config": {"num_labels": 2**31 - 1}}]
)
def test_names_of_enormously_many_classes_are_not_made(
    change: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`transformers` makes one for each, whatever it reads the file for."""
    edit(folder, "config.json", **change)
    monkeypatch.setattr("export.tokenizer.tokenizer_json._from_transformers", pytest.fail)
    with pytest.raises(CheckpointError, match="num_labels = 2147483647 is over 1000000 classes"):
        fast_tokenizer(open_checkpoint(str(folder)))


def test_export_beyond_the_memory_limit_is_refused(folder: Path) -> None:
    network = read(folder, limit_bytes(1.0))
    needed = needed_bytes(network_bytes(network))
    with pytest.raises(SetupError, match=r"needs about 0\.7 GiB .* --memory-limit"):
        read(folder, needed - 1)
    assert 0 < limit_bytes(None) < 1 << 50


# -------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../b"])
def test_weight_index_stays_inside_the_folder(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder.parent / "outside.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        read(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "1/../../other"])
def test_modules_stay_inside_the_folder(folder: Path, path: str) -> None:
    modules = [{"type": "sentence_transformers.models.Dense", "path": path}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors", "1"])
def test_link_out_of_the_folder_is_refused(folder: Path, file: str) -> None:
    target = folder.parent / "elsewhere"
    if file == "1":
        target.mkdir()
    else:
        (folder / file).rename(target)
    (folder / file).symlink_to(target)
    with pytest.raises(CheckpointError, match=r"is a link to .* copy the file into the folder"):
        open_checkpoint(str(folder))


def test_folder_may_be_a_link_and_hold_links_inside(folder: Path, tmp_path: Path) -> None:
    (folder / "part").mkdir()
    (folder / "model.safetensors").rename(folder / "part" / "weights")
    (folder / "model.safetensors").symlink_to(Path("part") / "weights")
    link = tmp_path / "link"
    link.symlink_to(folder)
    read(link)


def test_links_of_the_hub_s_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    cached = tmp_path / "models--who--what"
    snapshot, blobs = cached / "snapshots" / ("a" * 40), cached / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for place, path in enumerate(sorted(each for each in folder.iterdir() if each.is_file())):
        path.rename(blobs / str(place))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(place))
    read(snapshot)
    (snapshot / "README.md").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="is a link to"):
        open_checkpoint(str(snapshot))
