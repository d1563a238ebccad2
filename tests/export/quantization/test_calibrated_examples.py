"""OpenVINO's int8, calibrated on samples of the example world, loses at most half a point."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from benchmarks.local_model import LocalModel, torch_model
from benchmarks.panel import Panel, local_responses
from benchmarks.quality import MEASURES
from examples import CHECKPOINTS
from examples.bert.fact_wordings import question, sentence_of, worded
from examples.bert.facts import ASKED, facts
from examples.bert.reviews import reviews
from examples.scenes.rendering import render
from examples.scenes.scene import scenes
from export.parity.graph_runs import open_graphs
from export.pipeline.cli import export
from export.precision import Precision, Runtime
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.tasks.shared.model_calls import Array
from serving.local_model import Infer

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
