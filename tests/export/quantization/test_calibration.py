"""Calibration: samples as the graphs take them, and what they gain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from benchmarks.local_model import LocalModel, torch_model
from benchmarks.panel import Panel, local_responses
from benchmarks.quality import MEASURES
from examples import CHECKPOINTS
from examples.bert.facts import ASKED, facts, question, sentence_of, worded
from examples.bert.reviews import reviews
from examples.scenes.rendering import render
from examples.scenes.scene import scenes
from export.layers.images.vision import pixels_port
from export.parity.graph_runs import open_graphs
from export.pipeline.cli import export
from export.precision import Precision, Runtime
from export.quantization.calibration_set import (
    HELD_OUT,
    MOST,
    CalibrationSet,
    TextSample,
    read_samples,
    samples_hash,
)
from inference.bundle.inputs import Regions
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.errors import SetupError
from inference.processing.image import decode_image, prepare_image
from inference.tasks.shared.model_calls import Array
from serving.load_model import load_model
from serving.local_model import Infer
from tests.export.conftest import example_bundle
from tests.inference.tiny_models import plain_recipe, video_classifier

COUNT = 400
POINTS = 0.5


def _reviews(folder: Path) -> Path:
    return _written(folder, (review.text for review in reviews("train", 1)))


def _facts(folder: Path) -> Path:
    rng = Random(1)
    return _written(folder, (worded(fact, rng) for fact in facts("train", 1)))


def _pairs(folder: Path) -> Path:
    rng = Random(1)
    pairs = (
        f"{sentence_of(question(fact, rng.choice(ASKED)))}\t{worded(fact, rng)}"
        for fact in facts("train", 1)
    )
    return _written(folder, pairs)


def _scenes(folder: Path) -> Path:
    folder.mkdir()
    for number, scene in enumerate(scenes("train", 200, 1)):
        render(scene, number).save(folder / f"{number:03}.png")
    return folder


def _written(folder: Path, texts: Iterator[str]) -> Path:
    folder.mkdir()
    path = folder / "samples.txt"
    path.write_text("".join(f"{text}\n" for text in islice(texts, 320)), encoding="utf-8")
    return path


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "measured", "samples"),
    [
        ("example-bert-sentiment", "sentiment", _reviews),
        ("example-bert-tags", "tags", _facts),
        ("example-bert-rerank", "rerank, answer", _pairs),
        ("example-bert-embed", "paraphrases", _facts),
        ("example-vit", "image classes, right", _scenes),
    ],
)
def test_int8_with_fixed_scales_keeps_the_task_quality(
    name: str, measured: str, samples: Callable[[Path], Path], tmp_path: Path
) -> None:
    calibration = [samples(tmp_path / "samples")]
    export(
        str(CHECKPOINTS / name),
        repository=tmp_path / "repository",
        runtime=Runtime.OPENVINO,
        precision=Precision.INT8,
        calibration=calibration,
    )
    bundle = newest_bundle(tmp_path / "repository", name)
    text = bundle.path(bundle.manifest.report).read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    report = json.loads(text)["int8"]
    assert report["calibration"]["from"] == [calibration[0].name]
    assert all(count >= 40 for count in report["calibration"]["held_out"].values())
    assert 0.98 < report["least_cosine"] < 1
    columns = [torch_model(CHECKPOINTS / name, bundle), _compiled(bundle)]
    panels = [Panel(local_responses({name: model})) for model in columns]
    scores = [
        [measure.score(panel, COUNT) for measure in MEASURES if measure.name.startswith(measured)]
        for panel in panels
    ]
    assert scores[0]
    lost = [want - got for want, got in zip(*scores, strict=True)]
    assert max(lost) <= POINTS


def _compiled(bundle: Bundle) -> LocalModel:
    """The bundle in the runtime that serves it."""
    run = open_graphs(bundle)
    parts = bundle.manifest.parts
    return LocalModel(bundle, None, {parts[key]: _all_outputs(partial(run, key)) for key in parts})


def _all_outputs(run: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Infer:
    return lambda outputs, inputs: run(inputs)


CALIBRATION_SET_COUNT = 20


def _texts(folder: Path, *lines: str) -> Path:
    path = folder / "samples.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _images(folder: Path, count: int = CALIBRATION_SET_COUNT) -> Path:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (40, 30), (number, 99, 3)).save(folder / f"{number:02}.png")
    return folder


def _set(bundle: Bundle, *paths: Path) -> CalibrationSet:
    return CalibrationSet.of(read_samples(paths), bundle)


def test_every_fifth_text_is_held_out_and_ids_are_the_gateways(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    lines = [f"The food was not bad at table {number}." for number in range(CALIBRATION_SET_COUNT)]
    found = _set(bundle, _texts(tmp_path, *lines))
    assert (
        len(found.calibration["text"]) == CALIBRATION_SET_COUNT - CALIBRATION_SET_COUNT // HELD_OUT
    )
    places = [place for place, _ in found.held_out["text"]]
    assert places == ["samples.txt:5", "samples.txt:10", "samples.txt:15", "samples.txt:20"]
    encoded = load_model(bundle).spans.encode_text(lines[4])
    feeds = found.held_out["text"][0][1]
    assert feeds["token_ids"].tolist() == [list(encoded.ids)]
    assert feeds["lengths"].tolist() == [len(encoded)]
    assert not feeds["segments"].any()
    assert found.as_json() == {
        "from": ["samples.txt"],
        "found": CALIBRATION_SET_COUNT,
        "calibrated": {"text": 16},
        "held_out": {"text": 4},
        "truncated": 0,
    }


def test_a_token_without_an_embedding_is_named_with_its_sample(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    last = max(load_model(bundle).spans.encode_text("The food was good").ids)
    bounded = bundle.manifest.model_copy(update={"source_vocabulary_size": last})
    with pytest.raises(SetupError, match=rf"samples.txt:1: .* is token {last}, and the model"):
        _set(
            Bundle(bundle.folder, bounded),
            _texts(tmp_path, *["The food was good"] * CALIBRATION_SET_COUNT),
        )


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


def test_a_bundle_that_reads_vectors_takes_no_samples(tmp_path: Path) -> None:
    videos = Bundle(tmp_path, video_classifier())
    folder, texts = _images(tmp_path / "photos"), _texts(tmp_path, *["lamp"] * 20)
    with pytest.raises(SetupError, match="no vectors, which tiny-zero-shot reads"):
        _set(videos, folder, texts)


def test_a_bundle_with_two_towers_needs_texts_and_images(tmp_path: Path) -> None:
    bundle = example_bundle("example-clip", tmp_path)
    texts = _texts(tmp_path, *[f"{number} red circles" for number in range(CALIBRATION_SET_COUNT)])
    folder = _images(tmp_path / "photos")
    found = _set(bundle, folder, texts)
    assert {key: len(feeds) for key, feeds in found.calibration.items()} == dict.fromkeys(
        bundle.manifest.graphs, 16
    )
    assert len(found.calibration) == 2
    for given in (folder, texts):
        with pytest.raises(SetupError, match="and at least 10 are needed"):
            _set(bundle, given)


def test_images_and_texts_of_one_graph_are_read_together(tmp_path: Path) -> None:
    """Of ten texts and twenty files of regions, each text is read twice."""
    bundle, recipe = example_bundle("example-bert-sentiment", tmp_path), plain_recipe((1, 3))
    recipe = recipe.model_copy(update={"regions": Regions(features=3, has_boxes=False, most=9)})
    graph = bundle.manifest.graphs["text"]
    graph = graph.model_copy(update={"inputs": (pixels_port(recipe), *graph.inputs)})
    manifest = bundle.manifest.model_copy(update={"graphs": {"pair": graph}, "image": recipe})
    _images(tmp_path / "found")  # beside the files that are read
    for number in range(CALIBRATION_SET_COUNT):
        features = np.full((number % 9 + 1, 3), number, np.float32)
        np.savez(tmp_path / "found" / f"{number:02}.npz", features=features)
    texts = _texts(tmp_path, *[f"Table {number} was good." for number in range(10)])
    found = _set(Bundle(bundle.folder, manifest), tmp_path / "found", texts)
    assert (len(found.calibration["pair"]), len(found.held_out["pair"])) == (16, 4)
    place, feeds = found.held_out["pair"][2]
    assert place == "14.npz,samples.txt:5"
    assert set(feeds) == {port.name for port in graph.inputs}
    np.testing.assert_array_equal(feeds["pixels"], np.full((1, 6, 1, 3), 14))
    encoded = load_model(bundle).spans.encode_text("Table 4 was good.")
    assert feeds["token_ids"].tolist() == [list(encoded.ids)]
    with pytest.raises(SetupError, match=r"20 images and 0 files of regions: .* reads regions"):
        _set(Bundle(bundle.folder, manifest), _images(tmp_path / "photos"), texts)


def test_the_wrong_kind_of_samples_is_an_error(tmp_path: Path) -> None:
    bundle = example_bundle("example-vit", tmp_path)
    with pytest.raises(SetupError, match=r"20 texts, 0 images and .*: example-vit reads images"):
        _set(bundle, _texts(tmp_path, *["a red circle"] * CALIBRATION_SET_COUNT))


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_text_or_with_a_tab_a_pair(tmp_path: Path) -> None:
    path = _file(tmp_path, "texts.txt", "one text\n\nWho?\tAna.\n")
    samples = read_samples([path])
    assert samples.texts == (
        TextSample("texts.txt:1", "one text"),
        TextSample("texts.txt:3", "Who?", "Ana."),
    )
    assert (samples.images, samples.regions) == ((), ())
    assert (samples.names, samples.found) == (("texts.txt",), 2)


def test_json_lines_name_their_texts(tmp_path: Path) -> None:
    lines = '{"text": "a\\tb", "label": 3}\n{"first": "Who?", "second": "Ana."}\n'
    samples = read_samples([_file(tmp_path, "texts.jsonl", lines)])
    assert [(each.text, each.second) for each in samples.texts] == [
        ("a\tb", None),
        ("Who?", "Ana."),
    ]


def test_a_folder_holds_images_at_any_depth_and_texts(tmp_path: Path) -> None:
    (tmp_path / "inputs" / "cats").mkdir(parents=True)
    for name in ("b.JPG", "cats/a.png", ".hidden.png", "notes.md"):
        (tmp_path / "inputs" / name).write_bytes(b"")
    _file(tmp_path / "inputs", "labels.txt", "a cat\n")
    samples = read_samples([tmp_path / "inputs"])
    assert [path.name for path in samples.images] == ["b.JPG", "a.png"]
    assert [each.text for each in samples.texts] == ["a cat"]
    assert samples.names == ("inputs",)


def test_many_samples_are_thinned_evenly(tmp_path: Path) -> None:
    path = _file(tmp_path, "many.txt", "".join(f"{n}\n" for n in range(3 * MOST)))
    samples = read_samples([path])
    assert [each.text for each in samples.texts] == [str(n) for n in range(0, 3 * MOST, 3)]
    assert samples.found == 3 * MOST


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n\n", "the file is empty: give one text a line"),
        ("photo.raw", b"\xff\xfe\x00\xd8", "neither text in UTF-8 nor an image"),
        ("broken.jsonl", b'{"text": ', "broken.jsonl:1: not JSON"),
        ("other.jsonl", b'{"sentence": "x"}', 'expected {"text": '),
        ("number.jsonl", b'{"text": "x", "second": 3}', 'expected {"text": '),
    ],
)
def test_an_unusable_file_is_refused_by_its_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SetupError, match="--calibration") as refused:
        read_samples([tmp_path / name])
    assert name in refused.value.message
    assert message in refused.value.message


def test_missing_paths_and_folders_without_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no such file or folder"):
        read_samples([tmp_path / "nothing.txt"])
    with pytest.raises(SetupError, match=r"has no images .* and no texts"):
        read_samples([tmp_path])


def test_hash_follows_the_contents_and_not_the_place(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        _file(folder, "texts.txt", "a\n")
    before = samples_hash([one])
    assert samples_hash([other]) == before == samples_hash([one / "texts.txt"])
    _file(one, "texts.txt", "b\n")
    assert samples_hash([one]) != before
