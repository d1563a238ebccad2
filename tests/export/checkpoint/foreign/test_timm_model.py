"""Folders in timm's format compute what timm 1.0.31 computes; others are refused by name.

`files/timm` was written by `write_timm` of `write_files.py` with timm itself: tiny models of odd
sizes, a picture, the pixels that timm makes of it for each of them, and its outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from export.checkpoint import checkpoint as checkpoints
from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.image_recipe import image_spec
from export.graphs.source_model import SourceModel
from export.parity.judge import TOLERANCE
from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from inference.processing.image import prepare_image
from tests.export.checkpoint.foreign.write_files import ANSWERS, FILES
from tests.export.oracle import difference

PLACE = FILES / "timm"
NAMES = sorted(path.parent.name for path in PLACE.glob("*/config.json"))
WEIGHTS = "model.safetensors"
each = pytest.mark.parametrize("name", NAMES)


@cache
def _answers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PLACE / ANSWERS).read_text(encoding="utf-8"))
    return found


def _wanted(name: str) -> torch.Tensor:
    """Timm's output for the picture; of an embedding, at length one."""
    outputs = torch.tensor(_answers()[name])
    is_embedding = not json.loads((PLACE / name / "config.json").read_text())["num_classes"]
    return outputs / outputs.norm() if is_embedding else outputs


def _pixels(folder: Path) -> np.ndarray[Any, Any]:
    with Image.open(PLACE / "picture.png") as picture:
        return prepare_image(picture.convert("RGB"), image_spec(open_checkpoint(str(folder))))


def _outputs(folder: Path) -> torch.Tensor:
    """Ours for the picture, from the file to the output."""
    source = SourceModel.open(folder)
    source.network.prepare(source.image)
    with torch.no_grad():
        found = source.network(torch.tensor(_pixels(folder))[None])
    return found[0]


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Copies a folder, for tests to change: `config.json` by updates, None removes a field."""

    def copied(name: str, **changes: Any) -> Path:
        folder = tmp_path / "timm"
        shutil.copytree(PLACE / name, folder)
        config = json.loads((folder / "config.json").read_text())
        for key, value in changes.items():
            inner = config.setdefault("pretrained_cfg" if key == "recipe" else key, {})
            config |= {"pretrained_cfg": inner | value} if key == "recipe" else {key: value}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return copied


def _change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors of a folder, or removes those that are None; `__` stands for a dot."""
    tensors = load_file(folder / WEIGHTS)
    for name, value in changes.items():
        tensors.pop(name := name.replace("__", "."), None)
        tensors |= {} if value is None else {name: value}
    save_file(tensors, folder / WEIGHTS)


# --------------------------------------------------------------------------------------- numbers


@each
def test_pixels_are_those_of_timm(name: str) -> None:
    with Image.open(PLACE / f"{name}.png") as prepared:
        assert np.array_equal(_pixels(PLACE / name), np.asarray(prepared))


@each
def test_outputs_are_those_of_timm(name: str) -> None:
    assert difference(_wanted(name), _outputs(PLACE / name)) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit", {"recipe": {"interpolation": "bilinear"}}),
        ("vit", {"recipe": {"crop_pct": 0.8}}),
        ("vit", {"recipe": {"crop_mode": "squash"}}),
        ("vit", {"model_args": {"num_heads": 2}}),
        ("scaled", {"recipe": {"mean": [0.5, 0.3, 0.6]}}),
        ("beit", {"recipe": {"std": [0.3, 0.4, 0.5]}}),
    ],
)
def test_planted_fault_of_the_configuration_shows(
    copy: Callable[..., Path], name: str, changes: dict[str, Any]
) -> None:
    assert difference(_wanted(name), _outputs(copy(name, **changes))) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("basic", "layer2.0.downsample.1.running_mean"),
        ("bottleneck", "layer4.1.bn3.running_var"),
        ("vit", "blocks.1.attn.qkv.bias"),
        ("scaled", "blocks.0.ls2.gamma"),
        ("registers", "reg_token"),
        ("gated", "blocks.0.mlp.fc1.bias"),
        ("convnext", "stages.1.blocks.1.gamma"),
        ("convnextv2", "stages.0.blocks.0.mlp.grn.weight"),
        ("swin", "layers.1.downsample.norm.weight"),
        ("beit", "blocks.1.attn.relative_position_bias_table"),
    ],
)
def test_planted_fault_of_a_tensor_shows(copy: Callable[..., Path], name: str, tensor: str) -> None:
    folder = copy(name)
    value = load_file(folder / WEIGHTS)[tensor]
    _change(folder, **{tensor.replace(".", "__"): 2 * value.flip(-1) + 0.5})
    assert difference(_wanted(name), _outputs(folder)) > 10 * TOLERANCE


# ---------------------------------------------------------------------------------------- folders


def test_folder_of_the_wrapper_is_read_too(copy: Callable[..., Path]) -> None:
    folder = copy("vit", model_type="timm_wrapper", architectures=["TimmWrapperForImage"])
    tensors = load_file(folder / WEIGHTS)
    save_file({f"timm_model.{name}": each for name, each in tensors.items()}, folder / WEIGHTS)
    assert difference(_wanted("vit"), _outputs(folder)) < TOLERANCE


def test_wrapper_without_a_head_embeds(copy: Callable[..., Path]) -> None:
    folder = copy("registers", model_type="timm_wrapper", architectures=["TimmWrapperModel"])
    config = json.loads((folder / "config.json").read_text()) | {"num_classes": 2}
    (folder / "config.json").write_text(json.dumps(config))
    assert difference(_wanted("registers"), _outputs(folder)) < TOLERANCE


def test_pickled_weights_are_read_without_running_code(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    assert difference(_wanted("vit"), _outputs(folder)) < TOLERANCE


def test_older_form_holds_the_recipe_at_the_top(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    config = json.loads((folder / "config.json").read_text())
    flat = config | config.pop("pretrained_cfg")
    (folder / "config.json").write_text(json.dumps(flat))
    assert difference(_wanted("vit"), _outputs(folder)) < TOLERANCE


def test_older_names_of_swin_are_read(copy: Callable[..., Path]) -> None:
    folder = copy("swin")
    tensors = load_file(folder / WEIGHTS)
    older = {"layers.1.downsample": "layers.0.downsample", "head.fc": "head"}
    for new, old in older.items():
        tensors = {name.replace(new, old): each for name, each in tensors.items()}
    tensors["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    save_file(tensors, folder / WEIGHTS)
    assert difference(_wanted("swin"), _outputs(folder)) < TOLERANCE


def test_folder_of_open_clip_is_no_folder_of_timm(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    (folder / "open_clip_config.json").write_text("{}")
    assert open_checkpoint(str(folder)).is_open_clip


def test_folder_from_the_hub_keeps_its_name_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_download", lambda *given: (PLACE / "vit", "0123abc"))
    opened = open_checkpoint("timm/vit_tiny_patch16_224.augreg_in21k")
    assert opened.name == "vit_tiny_patch16_224.augreg_in21k"
    assert (opened.revision, opened.location) == ("0123abc", "timm/" + opened.name)
    assert opened.config["model_type"] == "vit"


def test_classes_have_their_names(copy: Callable[..., Path]) -> None:
    labels = ["a", "b", "c", "d", "e"]
    folder = copy("vit", label_names=labels)
    opened = open_checkpoint(str(folder))
    assert list(opened.config["id2label"].values()) == labels
    assert not any("label_names" in note for note in opened.notes())
    assert any("no label_names" in note for note in open_checkpoint(str(PLACE / "vit")).notes())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), [("gated", "classify"), ("bottleneck", "embed")])
def test_exported_folder_answers_as_timm(tmp_path: Path, name: str, task: str) -> None:
    app = typer.Typer()
    app.command()(export)
    result = CliRunner().invoke(app, [str(PLACE / name), "--repository", str(tmp_path)])
    assert result.exit_code == 0, result.output
    bundle = newest_bundle(tmp_path, name)
    assert set(bundle.manifest.tasks) == {task}
    session = onnxruntime.InferenceSession(str(bundle.path("model.onnx")))
    (given,) = session.run(None, {"pixels": _pixels(PLACE / name)[None]})
    assert difference(_wanted(name), torch.from_numpy(given[0])) < TOLERANCE


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "architecture",
    [
        *("resnet50d", "resnet26t", "resnet50_gn", "seresnet50", "resnetaa50", "resnext50_32x4d"),
        *("wide_resnet50_2", "vit_base_patch16_clip_224", "vit_base_patch16_siglip_224"),
        *("vit_medium_patch16_gap_240", "vit_medium_patch16_reg4_gap_256", "convnext_nano_ols"),
        *("deit_base_distilled_patch16_224", "vit_base_patch16_rpn_224", "convnext_tiny_hnf"),
        *("convnext_xxlarge", "swin_s3_tiny_224", "mobilenetv3_small_100"),
    ],
)
def test_other_architecture_is_refused_with_those_that_are_served(
    copy: Callable[..., Path], architecture: str
) -> None:
    with pytest.raises(CheckpointError, match=f"architecture {architecture} .*served are: resnet"):
        open_checkpoint(str(copy("vit", architecture=architecture)))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit", {"model_args": {"act_layer": "quick_gelu"}}, "unknown fields: act_layer"),
        ("vit", {"model_args": {"norm_layer": "rmsnorm"}}, "unknown fields: norm_layer"),
        ("vit", {"model_args": {"global_pool": "avg"}}, "global_pool = 'avg' is not supported"),
        ("vit", {"global_pool": "map"}, "global_pool = 'map' is not supported, only 'token'"),
        ("vit", {"model_args": {"in_chans": 1}}, "in_chans = 1 is not supported"),
        ("basic", {"model_args": {"output_stride": 8}}, "unknown fields: output_stride"),
        ("convnext", {"model_args": {"head_norm_first": True}}, "fields: head_norm_first"),
        ("vit", {"recipe": {"crop_mode": "border"}}, "crop_mode = 'border' is not supported"),
        ("vit", {"recipe": {"interpolation": "random"}}, "interpolation = 'random'"),
        ("basic", {"recipe": {"input_size": [3, 16, 20]}}, "only a part of a square"),
        ("basic", {"recipe": {"crop_pct": 1.2}}, "crop_pct = 1.2 of"),
        ("vit", {"recipe": {"input_size": [1, 16, 16]}}, "is of no RGB image"),
        ("vit", {"recipe": {"input_size": [3, 24, 24]}}, "pos_embed has 17 positions"),
        ("swin", {"recipe": {"input_size": [3, 20, 20]}}, "only a square of multiples of 16"),
        ("vit", {"num_classes": 6}, "num_classes = 6, but the weights .* are of 5 classes"),
        ("vit", {"num_classes": 0}, "num_classes = 0, but the weights .* are of 5 classes"),
        ("vit", {"label_names": ["a", "b"]}, "names of 5 classes"),
        ("vit", {"do_pooling": False}, "do_pooling = False"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    copy: Callable[..., Path], name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        image_spec(open_checkpoint(str(copy(name, **changes))))


@pytest.mark.parametrize(
    "tensor",
    ["fc_norm.weight", "norm_pre.weight", "head_dist.weight", "blocks.0.attn.q_norm.weight"],
)
def test_tensor_of_another_network_is_refused(copy: Callable[..., Path], tensor: str) -> None:
    folder = copy("vit")
    _change(folder, **{tensor.replace(".", "__"): torch.ones(12)})
    with pytest.raises(CheckpointError, match=f"that are not computed: {tensor}"):
        open_checkpoint(str(folder))


def test_registers_without_layer_scale_are_refused(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    _change(folder, reg_token=torch.ones(1, 4, 12))
    with pytest.raises(CheckpointError, match="not computed: reg_token"):
        open_checkpoint(str(folder))


def test_missing_tensor_is_named(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    _change(folder, pos_embed=None)
    with pytest.raises(CheckpointError, match=r"pos_embed of timm's .* is missing or misshaped"):
        open_checkpoint(str(folder))


def test_missing_weights_are_named(copy: Callable[..., Path]) -> None:
    folder = copy("vit")
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors or pytorch_model\.bin"):
        open_checkpoint(str(folder))
