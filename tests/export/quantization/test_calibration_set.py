"""Samples as the graphs take them: the gateway's own ids and pixels, a part of them held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.quantization.calibration_set import HELD_OUT, CalibrationSet
from export.quantization.samples import read_samples
from inference.bundle.manifest import Bundle
from inference.errors import SetupError
from inference.processing.image import decode_image, prepare_image
from serving.load_model import load_model
from tests.export.example_bundles import example_bundle

COUNT = 20


def _texts(folder: Path, *lines: str) -> Path:
    path = folder / "samples.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _images(folder: Path, count: int = COUNT) -> Path:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (40, 30), (number, 99, 3)).save(folder / f"{number:02}.png")
    return folder


def _set(bundle: Bundle, *paths: Path) -> CalibrationSet:
    return CalibrationSet.of(read_samples(paths), bundle)


def test_every_fifth_text_is_held_out_and_ids_are_the_gateways(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    lines = [f"The food was not bad at table {number}." for number in range(COUNT)]
    found = _set(bundle, _texts(tmp_path, *lines))
    assert len(found.calibration["text"]) == COUNT - COUNT // HELD_OUT
    places = [place for place, _ in found.held_out["text"]]
    assert places == ["samples.txt:5", "samples.txt:10", "samples.txt:15", "samples.txt:20"]
    encoded = load_model(bundle).spans.encode_text(lines[4])
    feeds = found.held_out["text"][0][1]
    assert feeds["token_ids"].tolist() == [list(encoded.ids)]
    assert feeds["lengths"].tolist() == [len(encoded)]
    assert not feeds["segments"].any()
    assert found.as_json() == {
        "from": ["samples.txt"],
        "found": COUNT,
        "calibrated": {"text": 16},
        "held_out": {"text": 4},
        "truncated": 0,
    }


def test_a_token_without_an_embedding_is_named_with_its_sample(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    last = max(load_model(bundle).spans.encode_text("The food was good").ids)
    bounded = bundle.manifest.model_copy(update={"source_vocabulary_size": last})
    with pytest.raises(SetupError, match=rf"samples.txt:1: .* is token {last}, and the model"):
        _set(Bundle(bundle.folder, bounded), _texts(tmp_path, *["The food was good"] * COUNT))


def test_a_text_that_is_too_long_is_cut_as_windows_are(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-tags", tmp_path)
    limit = bundle.manifest.limits.max_input_tokens
    found = _set(bundle, _texts(tmp_path, *["lamp " * 4 * limit] * 10))
    ids = found.calibration["text"][0]["token_ids"][0]
    ends = load_model(bundle).spans.encode_text("lamp").ids
    assert found.truncated == 10
    assert (len(ids), ids[0], ids[-1]) == (limit, ends[0], ends[-1])


def test_a_reranker_refuses_single_texts_and_reads_pairs(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-rerank", tmp_path)
    with pytest.raises(SetupError, match=r"samples.txt:1: example-bert-rerank reads pairs"):
        _set(bundle, _texts(tmp_path, *["Ana sings."] * 10))
    found = _set(bundle, _texts(tmp_path, *["Who sings?\tAna sings."] * 10))
    encoded = load_model(bundle).spans.encode_text("Who sings?", "Ana sings.")
    feeds = found.calibration["text"][0]
    assert feeds["token_ids"].tolist() == [list(encoded.ids)]
    assert feeds["segments"].tolist() == [list(encoded.segments)]


def test_the_two_texts_of_a_pair_are_two_samples_where_nothing_reads_pairs(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-embed", tmp_path)
    found = _set(bundle, _texts(tmp_path, *["Ana sings.\tPedro is here."] * 10))
    assert len(found.calibration["text"]) + len(found.held_out["text"]) == 20


def test_masks_of_the_text_are_scored_and_else_some_words_are_masked(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert", tmp_path)
    lines = ["My sister [MASK] a teacher."] * 10 + ["My sister is a teacher."] * 10
    found = _set(bundle, _texts(tmp_path, *lines))
    mask = load_model(bundle).spans.token_id("[MASK]")
    for feeds in found.calibration["text"]:
        positions = feeds["positions"][0]
        assert feeds["token_ids"][0][positions].tolist() == [mask] * len(positions)
        assert (feeds["token_ids"] == mask).sum() == len(positions) == 1
    assert found.calibration["text"][0]["choices"].tolist() == [[mask]]
    assert found.calibration["text"][-1]["choices"][0, 0] != mask


def test_images_are_prepared_as_the_gateway_prepares_them(tmp_path: Path) -> None:
    bundle = example_bundle("example-vit", tmp_path)
    found = _set(bundle, _images(tmp_path / "photos"))
    image = decode_image((tmp_path / "photos" / "00.png").read_bytes())
    pixels = prepare_image(image, bundle.manifest.image)
    [key] = found.calibration
    np.testing.assert_array_equal(found.calibration[key][0]["pixels"][0], pixels)


def test_a_damaged_image_is_refused_by_its_name(tmp_path: Path) -> None:
    bundle = example_bundle("example-vit", tmp_path)
    folder = _images(tmp_path / "photos")
    (folder / "07.png").write_bytes(b"no image")
    with pytest.raises(SetupError, match=r"07\.png: not an image"):
        _set(bundle, folder)


def test_a_bundle_with_two_towers_needs_texts_and_images(tmp_path: Path) -> None:
    bundle = example_bundle("example-clip", tmp_path)
    texts = _texts(tmp_path, *[f"{number} red circles" for number in range(COUNT)])
    folder = _images(tmp_path / "photos")
    found = _set(bundle, folder, texts)
    assert {key: len(feeds) for key, feeds in found.calibration.items()} == dict.fromkeys(
        bundle.manifest.graphs, 16
    )
    assert len(found.calibration) == 2
    for given in (folder, texts):
        with pytest.raises(SetupError, match="and at least 10 are needed"):
            _set(bundle, given)


def test_the_wrong_kind_of_samples_is_an_error(tmp_path: Path) -> None:
    bundle = example_bundle("example-vit", tmp_path)
    with pytest.raises(SetupError, match="20 texts and 0 images: example-vit reads images"):
        _set(bundle, _texts(tmp_path, *["a red circle"] * COUNT))
