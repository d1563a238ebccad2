"""Folders in open_clip's format: recognised, read strictly, exported and answered as written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer
from typer.testing import CliRunner

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.image_recipe import OPENAI, image_spec
from export.graphs.source_model import SourceModel
from export.parity.judge import TOLERANCE
from export.pipeline.cli import export
from export.registry import architecture
from inference.bundle.inputs import ImageSpec
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from inference.processing.image import prepare_image
from inference.processing.tokenizer_kinds import load_tokenizer
from tests.export.conftest import Bundles, Twins
from tests.export.models.dual_encoders.open_clip_paper import OpenClip
from tests.export.oracle import difference, normalised
from tests.export.twins import randomise

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
DECLARED = architecture("open_clip")


@pytest.fixture
def folder(twins: Twins, tmp_path: Path) -> Path:
    """A valid checkpoint for tests to damage."""
    copied = tmp_path / "checkpoint"
    shutil.copytree(twins("open_clip", "vit").checkpoint.folder, copied)
    return copied


def _load(folder: Path) -> Any:
    return SourceModel.open(folder).network


# ---------------------------------------------------------------------------------------- folder


def test_folder_without_config_json_is_open_clip(folder: Path) -> None:
    assert not (folder / "config.json").exists()
    assert open_checkpoint(str(folder)).config["model_type"] == "open_clip"


def test_config_json_of_timm_is_not_read(folder: Path) -> None:
    (folder / "config.json").write_text('{"architecture": "vit_base_patch32_clip_224"}')
    (folder / "model.safetensors").write_bytes(b"the image tower alone")
    _load(folder)


def test_config_json_of_transformers_takes_precedence(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "clip"}')
    assert open_checkpoint(str(folder)).config == {"model_type": "clip"}


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"no weights: expected {WEIGHTS}"):
        _load(folder)


def test_pickled_weights_are_refused_with_the_library_that_converts_them(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "open_clip_pytorch_model.bin")
    with pytest.raises(CheckpointError, match="load it with `open_clip`"):
        _load(folder)


def test_tensors_that_the_folder_lacks_have_their_names_in_the_message(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["visual.proj"], tensors["transformer.resblocks.1.attn.in_proj_bias"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=f"does not fit its {CONFIG}") as caught:
        _load(folder)
    assert "missing: visual.proj 7×36" in caught.value.message
    assert "missing: transformer.resblocks.1.attn.in_proj_bias" in caught.value.message


def test_constants_of_the_published_code_are_skipped_and_halves_read(folder: Path) -> None:
    whole = _load(folder)
    tensors = {name: value.half() for name, value in load_file(folder / WEIGHTS).items()}
    tensors |= {name: torch.tensor(7) for name in ("input_resolution", "context_length")}
    tensors["attn_mask"] = torch.full((12, 12), float("-inf")).triu(1)
    save_file(tensors, folder / WEIGHTS)
    for name, value in _load(folder).state_dict().items():
        torch.testing.assert_close(value, whole.state_dict()[name], atol=2e-4, rtol=1e-3)


# ----------------------------------------------------------------------------------------- config


def test_missing_tensor_of_a_resnet_has_its_published_name(twins: Twins, tmp_path: Path) -> None:
    tensors = load_file(twins("open_clip", "odd").checkpoint.folder / WEIGHTS)
    shutil.copytree(twins("open_clip", "odd").checkpoint.folder, tmp_path / "copy")
    removed = ["layer3.1.bn3.running_var", "layer3.0.downsample.0.weight", "conv2.weight"]
    for name in removed:
        del tensors[f"visual.{name}"]
    save_file(tensors, tmp_path / "copy" / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        _load(tmp_path / "copy")
    missing = [line.split()[1] for line in caught.value.message.splitlines()[1:]]
    assert sorted(missing) == sorted(f"visual.{name}" for name in removed)


def test_exported_resnet_has_no_batch_normalisation(bundles: Bundles) -> None:
    graph = onnx.load(bundles("open_clip", "odd").path("model.onnx")).graph
    kinds = [node.op_type for node in graph.node]
    assert "BatchNormalization" not in kinds
    assert kinds.count("Conv") == 3 + 5 * 3 + 4  # stem, blocks, shortcuts


def test_manifest_holds_the_trained_temperature(twins: Twins) -> None:
    twin = twins("open_clip", "vit")
    section = DECLARED.tasks["zero-shot"](twin.network, twin.checkpoint)
    assert section == {"logit_scale": twin.reference.logit_scale.exp().item()}


# ------------------------------------------------------------------------------------------ image


def _recipe(size: object, **fields: object) -> ImageSpec:
    config = {"model_type": "open_clip", "model_cfg": {"vision_cfg": {"image_size": size}}}
    return image_spec(Checkpoint(Path(), "x", config | {"preprocess_cfg": fields}))


def test_recipe_without_fields_is_open_clips_own() -> None:
    spec = _recipe(48)
    assert (spec.resize, spec.size, spec.crop, spec.resample) == (
        "shortest_edge",
        (48, 48),
        (48, 48),
        3,
    )
    assert (spec.mean, spec.std) == OPENAI


def test_squashed_image_is_resized_without_its_aspect_ratio() -> None:
    mean, std = [0.5, 0.4, 0.3], [0.3, 0.2, 0.1]
    spec = _recipe([20, 30], resize_mode="squash", interpolation="bilinear", mean=mean, std=std)
    assert (spec.mean, spec.std) == (tuple(mean), tuple(std))
    noise = np.random.default_rng(0).integers(0, 256, (37, 91, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    want = np.asarray(image.resize((30, 20), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(prepare_image(image, spec), want)


@pytest.mark.parametrize(("margin", "first"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 2), (7, 4)])
def test_crop_begins_where_torchvision_begins(margin: int, first: int) -> None:
    """`int(round(margin / 2))` of its `center_crop`; `transformers` rounds down."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 20 + margin, 3), dtype=np.uint8)
    want = noise[:, first : first + 20]
    np.testing.assert_array_equal(prepare_image(Image.fromarray(noise), _recipe(20)), want)


@pytest.mark.parametrize(
    ("size", "fields", "message"),
    [
        (48, {"resize_mode": "longest"}, "resize_mode must be shortest or squash"),
        (48, {"interpolation": "nearest"}, "interpolation bicubic, bilinear or random"),
        (48, {"mode": "L"}, "mode = 'L' is not supported"),
        ([48, 40], {}, "resize_mode = shortest needs a square image_size"),
    ],
)
def test_recipe_that_cannot_be_followed_is_refused(
    size: object, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _recipe(size, **fields)


# ----------------------------------------------------------------------------------------- export


def _save_tokenizer(folder: Path) -> int:
    """A tiny CLIP tokenizer in the fast format; the size of its vocabulary."""
    letters = list("abcdefghijklmnopqrstuvwxyz,.'!")
    merges = [("c", "a"), ("ca", "t</w>"), ("r", "e"), ("re", "d</w>")]
    tokens = [
        *letters,
        *(f"{letter}</w>" for letter in letters),
        *("".join(pair) for pair in merges),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocabulary, merges=merges).save_pretrained(folder)
    return len(tokens)


def _small_checkpoint(folder: Path) -> OpenClip:
    """A ViT with random weights, its tokenizer beside it."""
    folder.mkdir()
    size = _save_tokenizer(folder)
    text = {"context_length": 16, "vocab_size": size, "width": 16, "heads": 2, "layers": 1}
    image = {"image_size": 16, "patch_size": 8, "width": 16, "head_width": 8, "layers": 1}
    model = {"embed_dim": 12, "text_cfg": text, "vision_cfg": image, "quick_gelu": True}
    paper = OpenClip({"model_cfg": model, "preprocess_cfg": {"mean": [0.5, 0.4, 0.3]}}).eval()
    randomise(paper)
    paper.save_pretrained(folder)
    return paper


@pytest.mark.slow
def test_exported_folder_embeds_texts_and_images_as_the_paper(tmp_path: Path) -> None:
    source, repository = tmp_path / "tiny-clip", tmp_path / "repository"
    paper = _small_checkpoint(source)
    app = typer.Typer()
    app.command()(export)
    result = CliRunner().invoke(app, [str(source), "--repository", str(repository)])
    assert result.exit_code == 0, result.output
    bundle = newest_bundle(repository, "tiny-clip")
    assert set(bundle.manifest.tasks) == {"zero-shot"}

    tokenizer, theirs = load_tokenizer(bundle), CLIPTokenizer.from_pretrained(source)
    session = onnxruntime.InferenceSession(str(repository / "tiny-clip-text" / "1" / "model.onnx"))
    for text in ("A red cat!", "", "cat,cat"):
        tokens = tokenizer.encode(text)
        assert tokens == theirs(text)["input_ids"]
        feeds = {"token_ids": np.array([tokens]), "lengths": np.array([len(tokens)], np.int32)}
        (given,) = session.run(None, feeds)
        want = paper(None, torch.tensor([tokens]))["text_embeds"]
        assert difference(want, torch.from_numpy(given)) < TOLERANCE

    spec = bundle.manifest.image
    noise = np.random.default_rng(0).integers(0, 256, (21, 35, 3), dtype=np.uint8)
    pixels = prepare_image(Image.fromarray(noise), spec)[None]
    session = onnxruntime.InferenceSession(str(bundle.path("model.onnx")))
    (given,) = session.run(None, {"pixels": pixels})
    want = paper(normalised(torch.from_numpy(pixels), spec))["image_embeds"]
    assert difference(want, torch.from_numpy(given)) < TOLERANCE
