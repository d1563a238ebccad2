"""Tokenizer and image recipes as manifest fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from export.checkpoint.checkpoint import INSTRUCTION_TOKENIZER, Checkpoint
from export.checkpoint.image_recipe import image_spec
from export.graphs.source_model import SourceModel
from export.registry import architecture, families
from export.tokenizer.tokenizer import (
    _special_id,
    fast_tokenizer,
    languages,
    mask_token,
    sentencepiece_pair,
)
from export.tokenizer.tokenizer_json import FastTokenizer, check_tokenizers
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Role
from inference.errors import CheckpointError
from tests.export.twin import EXPORTED
from tests.export.twins import build, twin_of

VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 64, "width": 48},
    "resample": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
}
CLIP = VIT | {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
}


def _checkpoint(tmp_path: Path, name: str = "x", config: Any = None, **files: Any) -> Checkpoint:
    for stem, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / stem.replace("__", ".")).write_text(text)
    return Checkpoint(tmp_path, name, config or {})


def test_vit_recipe_is_an_exact_resize(tmp_path: Path) -> None:
    spec = image_spec(_checkpoint(tmp_path, preprocessor_config__json=VIT))
    assert (spec.resize, spec.size, spec.crop, spec.resample) == ("exact", (64, 48), None, 2)
    assert spec.shape == (64, 48, 3)


def test_clip_recipe_resizes_one_edge_and_crops(tmp_path: Path) -> None:
    spec = image_spec(_checkpoint(tmp_path, preprocessor_config__json=CLIP))
    assert (spec.resize, spec.crop, spec.resample) == ("shortest_edge", (224, 224), 3)


def test_old_clip_recipe_gives_one_number(tmp_path: Path) -> None:
    old = CLIP | {"size": 224, "crop_size": 224, "feature_extractor_type": "CLIPFeatureExtractor"}
    del old["image_processor_type"]
    spec = image_spec(_checkpoint(tmp_path, preprocessor_config__json=old))
    assert (spec.resize, spec.size, spec.crop) == ("shortest_edge", (224, 224), (224, 224))


def test_recipe_without_normalising_leaves_values(tmp_path: Path) -> None:
    values = VIT | {"do_normalize": False}
    spec = image_spec(_checkpoint(tmp_path, preprocessor_config__json=values))
    assert (spec.mean, spec.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"image_processor_type": "FlavaImageProcessor"},
        {"do_resize": False},
        {"size": {"longest_edge": 9}},
        {"image_mean": [0.5]},
    ],
)
def test_unsupported_recipe_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json"):
        image_spec(_checkpoint(tmp_path, preprocessor_config__json=VIT | change))


def test_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no preprocessor_config.json"):
        image_spec(_checkpoint(tmp_path))


def test_marian_files_are_copied_with_their_ids(tmp_path: Path) -> None:
    vocabulary = {"</s>": 0, "<unk>": 1, ">>fra<<": 2, ">>ita<<": 3, "<pad>": 4}
    files = {"source__spm": "s", "target__spm": "t", "vocab__json": vocabulary}
    spec, contents = sentencepiece_pair(_checkpoint(tmp_path, **files))
    assert (spec.pad_token_id, spec.eos_token_id, spec.unk_token_id) == (4, 0, 1)
    assert spec.target_prefixes == (">>fra<<", ">>ita<<")
    assert set(contents) == {"source.spm", "target.spm", "vocab.json"}


@pytest.mark.parametrize("missing", ["source__spm", "vocab__json"])
def test_missing_marian_file_is_named(tmp_path: Path, missing: str) -> None:
    files = {"source__spm": "s", "target__spm": "t", "vocab__json": {"<pad>": 1}}
    del files[missing]
    with pytest.raises(CheckpointError, match=missing.replace("__", r"\.")):
        sentencepiece_pair(_checkpoint(tmp_path, **files))


def test_special_ids_are_read_from_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 9, "content": "<end>"}], "model": {"vocab": {"<p>": 3}}}
    settings = {"eos_token": "<end>", "pad_token": {"content": "<p>"}, "bos_token": "<end>"}
    checkpoint = _checkpoint(tmp_path, tokenizer__json=tokenizer, tokenizer_config__json=settings)
    spec, contents = fast_tokenizer(checkpoint)
    assert (spec.eos_token_id, spec.pad_token_id, spec.bos_token_id) == (9, 3, 9)
    assert set(contents) == {"tokenizer.json"}


def test_unconvertible_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        fast_tokenizer(_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("opus-mt-es-en", (("es", "en"),)),
        ("example-en-fr", (("en", "fr"),)),
        ("opus-mt-en-ROMANCE", ()),
        ("marian", ()),
    ],
)
def test_languages_are_read_from_the_name(tmp_path: Path, name: str, pair: tuple) -> None:
    assert languages(_checkpoint(tmp_path, name)) == pair


def test_languages_of_the_settings_win(tmp_path: Path) -> None:
    settings = {"source_lang": "de", "target_lang": "nl"}
    checkpoint = _checkpoint(tmp_path, "opus-mt-es-en", tokenizer_config__json=settings)
    assert languages(checkpoint) == (("de", "nl"),)


def test_slow_files_are_converted(tmp_path: Path) -> None:
    checkpoint = _checkpoint(
        tmp_path,
        vocab__json={"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3},
        merges__txt="#version: 0.2\na b\n",
        tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"},
        config__json={"model_type": "gpt2"},
    )
    spec, contents = fast_tokenizer(checkpoint)
    assert json.loads(contents["tokenizer.json"])["model"]["vocab"]["ab"] == 3
    assert spec.eos_token_id == 0


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer.json is damaged"):
        fast_tokenizer(_checkpoint(tmp_path, tokenizer__json="{"))


def test_template_whose_tokens_have_no_ids_is_refused() -> None:
    """The library panics, which is no `Exception`."""
    backend = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    values = json.loads(backend.to_str())
    values["post_processor"]["special_tokens"] = {}
    spec = TokenizerSpec(kind="tokenizers", pad_token_id=0, files={"tokenizer": "tokenizer.json"})
    with pytest.raises(CheckpointError, match=r"tokenizer.json is damaged: no entry found"):
        check_tokenizers(spec, {"tokenizer.json": json.dumps(values).encode()})


@pytest.mark.parametrize("name", families())
def test_recipes_of_every_architecture_are_read_from_its_folder(name: str, tmp_path: Path) -> None:
    declared = architecture(name)
    config, network = build(name)
    files = {
        "vocab__json": {"</s>": 0, "<unk>": 1, "<pad>": 3},
        "source__spm": "",
        "target__spm": "",
    }
    if declared.tokenizer == "moses_pair":
        ids = {"</s>": 0, "<unk>": 1, "<s>": 2, "<pad>": 3}
        files = {"vocab-src__json": ids, "vocab-tgt__json": ids, "merges__txt": ""}
        files["tokenizer_config__json"] = {"langs": ["en", "de"]}
    if declared.tokenizer == "tokenizers":
        vocabulary = {"</s>": 0, "<pad>": 3}
        settings = {"eos_token": "</s>", "pad_token": "<pad>"}
        files = {
            "tokenizer__json": {"model": {"vocab": vocabulary}},
            "tokenizer_config__json": settings,
        }
    if declared.reads_instructions:
        (tmp_path / INSTRUCTION_TOKENIZER).mkdir()
        (tmp_path / INSTRUCTION_TOKENIZER / "tokenizer.json").write_text("{}")
    image = declared.size_of(config)
    if image is not None:
        image = twin_of(name).images.get(EXPORTED) or image
        height, width = image
        size = {"height": height, "width": width}
        files["preprocessor_config__json"] = VIT | {"size": size}
    values = dict(twin_of(name).configs[EXPORTED])
    checkpoint = _checkpoint(tmp_path, config=values, **files)
    prepared = SourceModel(checkpoint, declared).preprocessing
    if prepared.tokenizer is None:
        assert not prepared.files
    else:
        assert (prepared.tokenizer.eos_token_id, prepared.tokenizer.pad_token_id) == (0, 3)
        assert set(prepared.tokenizer.files.values()) == set(prepared.files)
    assert (prepared.tokenizer is None) == (declared.tokenizer is None)
    reads_regions = declared.image_recipe is not None
    assert (prepared.image is None) == (image is None and not reads_regions)
    graphs = declared.graphs(network, prepared.image)  # refuses a recipe of another size
    pixels = [low.graph.input(Role.PIXELS) for low in graphs.lowerings.values()]
    shapes = {port.shape[-3:] for port in pixels if port is not None}
    expected = {prepared.image.shape} if prepared.image else set()
    has_any_size = name in (
        *("llava_next", "llava_onevision", "mllama", "grounding-dino", "vilt", "idefics2"),
        *("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    )
    if reads_regions:
        expected = {("height", *prepared.image.shape[1:])}
    assert shapes == ({("height", "width", 3)} if has_any_size else expected)


def _mask_folder(folder: Path, vocabulary: object, **files: object) -> Checkpoint:
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": [{"content": "<mask>", "id": 9}]}
    return _checkpoint(folder, tokenizer__json=tokenizer, **files)


def test_mask_token_is_the_one_that_the_settings_name(tmp_path: Path) -> None:
    settings = {"mask_token": {"content": "[M]", "lstrip": True}}
    folder = _mask_folder(tmp_path, {"[M]": 2, "[MASK]": 5}, tokenizer_config__json=settings)
    assert mask_token(folder) == ("[M]", 2)


def test_mask_token_of_old_folders_is_found_by_its_text(tmp_path: Path) -> None:
    assert mask_token(_mask_folder(tmp_path, {"[MASK]": 5})) == ("[MASK]", 5)
    assert mask_token(_mask_folder(tmp_path, [["a", 0.1], ["b", 0.2]])) == ("<mask>", 9)


def test_mask_token_may_be_a_piece_of_a_unigram_model(tmp_path: Path) -> None:
    settings = {"mask_token": "b"}
    folder = _mask_folder(tmp_path, [["a", 0.1], ["b", 0.2]], tokenizer_config__json=settings)
    assert mask_token(folder) == ("b", 1)


def test_tokenizer_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path, tokenizer__json={"model": {"vocab": {"a": 0}}})
    with pytest.raises(CheckpointError, match="no mask token"):
        mask_token(folder)


def test_a_token_that_nothing_names_has_no_id() -> None:
    """Even where the vocabulary has an empty piece."""
    content = json.dumps({"model": {"vocab": {"": 5, "<s>": 1}}}).encode()
    fast = FastTokenizer(content, {"bos_token": "<s>"})
    assert _special_id("bos_token", {}, fast, {}) == 1
    assert _special_id("pad_token", {}, fast, {}) is None
