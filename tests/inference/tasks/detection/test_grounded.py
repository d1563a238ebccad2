"""`detect` over a model that reads all labels as one text; the test decides its scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.errors import InvalidRequest, TooLong, UnsupportedImage
from inference.tasks.detect import TASK
from inference.tasks.detection.grounded import GroundedPlan, count_places, join_labels
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.tiny_models import IMAGE, WordTokenizer, image_file, manifest, served
from triptych.tasks.detect import Detection, DetectRequest

BOXES = np.array([[0.5, 0.5, 1.0, 0.4], [0.25, 0.5, 0.5, 1.0]], np.float32)
LOGITS = np.array([[-9, 2, 1, -9, -9], [3, -2, -9, 0.5, -9]], np.float32)
"""Of the tokens "a", "cat.", "a", "dog." and the end."""


class _Words(WordTokenizer):
    def render(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(self.words[number] for number in ids)


def _model(most: int = 12) -> LoadedModel:
    shapes: dict[str, tuple[Any, Role, str]] = {
        "pixels": (("B", "height", "width", 3), Role.PIXELS, "uint8"),
        "token_ids": (("B", "T"), Role.TOKENS, "int64"),
        "lengths": (("B",), Role.LENGTHS, "int32"),
        "boxes": (("B", 2, 4), Role.BOXES, "float32"),
        "scores": (("B", 2, "T"), Role.TOKEN_LOGITS, "float32"),
    }
    ports = [
        Tensor(name=name, dtype=dtype, shape=shape, role=role)
        for name, (shape, role, dtype) in shapes.items()
    ]
    graph = Graph(file="model.onnx", inputs=tuple(ports[:3]), outputs=tuple(ports[3:]))
    described: Manifest = manifest(
        "detect",
        {"strides": ((2, 2), (4, 4))},
        image=IMAGE.model_copy(update={"edges": (4, 8)}),
        parts={"detect": "tiny-detect"},
        graphs={"detect": graph},
        generation=None,
    )
    limits = described.limits.model_copy(update={"max_input_tokens": most})
    model = served(described.model_copy(update={"limits": limits}), _Words())
    return replace(model, task_limits=TaskLimits(max_client_batch_size=4))


def _plan(labels: list[str], images: int = 1, most: int = 12, **fields: object) -> GroundedPlan:
    request = DetectRequest(images=["beside"] * images, labels=labels, **fields)
    made = TASK.prepare(request, [image_file("red")] * images, _model(most))
    assert isinstance(made, GroundedPlan)
    return made


def _found(most: int = 12, **fields: object) -> Detection:
    made = _plan(["a cat", "a dog"], most=most, **fields)
    outputs = {Role.BOXES: BOXES[None], Role.TOKEN_LOGITS: LOGITS[None]}
    return made.finish([outputs]).data[0]


def test_labels_are_one_text_and_each_image_is_a_call_of_its_own_size() -> None:
    made = _plan([" A Cat", "a dog"], images=2)
    assert [made.model.tokenizer.pieces(list(made.token_ids))] == [
        ["a", "cat.", "a", "dog.", "</s>"]
    ]
    assert len(made.calls) == 2
    for call in made.calls:
        assert call.inputs["pixels"].shape == (1, 4, 4, 3)  # of 6 x 5: 4 is the shorter edge
        assert call.inputs["token_ids"].tolist() == [list(made.token_ids)]
        assert call.inputs["lengths"].tolist() == [5]


def test_a_box_has_its_best_score_and_the_tokens_that_reach_the_threshold() -> None:
    item = _found()
    assert (item.width, item.height) == (6, 5)
    assert item.boxes is not None
    first, second = item.boxes
    assert (first.label, second.label) == ("dog.", "cat. a")  # the first token is never a part
    assert first.score == pytest.approx(1 / (1 + np.exp(-3.0)))
    assert second.score == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert (first.x_min, first.y_min, first.x_max, first.y_max) == pytest.approx((0, 0, 3, 5))


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"threshold": 0.9}, ["dog."]),
        ({"top_k": 1}, ["dog."]),
        ({"text_threshold": 0.7}, ["", "cat. a"]),
        ({"text_threshold": 0.1}, ["cat. dog.", "cat. a"]),
        ({"text_threshold": 0.0}, ["cat. a dog. </s>"] * 2),
    ],
)
def test_thresholds_leave_out_boxes_and_words(fields: dict[str, object], labels: list[str]) -> None:
    assert [box.label for box in _found(**fields).boxes or ()] == labels


def test_the_last_token_that_fits_is_no_part_of_a_label() -> None:
    found = _found(most=5, text_threshold=0.0)
    assert [box.label for box in found.boxes or ()] == ["cat. a dog."] * 2


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", " "], r"labels\.1 is empty"),
        (["a", "\ufeff"], r"labels\.1 is empty"),
        (["a", "dr. b"], r"labels\.1 has a full stop, which ends a label of this model"),
    ],
)
def test_a_label_that_would_change_the_text_is_refused(labels: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _plan(labels)


def test_more_labels_than_the_text_holds_are_refused() -> None:
    with pytest.raises(TooLong, match=r"labels \(as one text\) has 14 tokens.* at most 12"):
        _plan([f"w{number}" for number in range(13)])


def test_an_image_with_fewer_places_than_regions_is_refused() -> None:
    assert count_places(4, 5, ((2, 2), (4, 4))) == 2 * 3 + 1 * 2
    section = TASK.section_of(_model())
    assert count_places(1, 1, section.strides) == 2
    model = _model()
    scarce = model.manifest.model_copy(update={"tasks": {"detect": {"strides": ((8, 8),)}}})
    request = DetectRequest(images=["beside"], labels=["a"])
    with pytest.raises(UnsupportedImage, match="6x5 has too extreme an aspect ratio") as raised:
        TASK.prepare(request, [image_file("red")], served(scarce, _Words()))
    assert raised.value.field == "images.0"


def test_labels_are_joined_as_the_processor_joins_them() -> None:
    assert join_labels(["A cat ", "remote control?"]) == "a cat. remote control?."


def test_the_canary_is_a_small_image_with_a_text() -> None:
    (call,) = TASK.canary(_model())
    assert call.inputs["pixels"].shape == (1, 4, 4, 3)
    assert set(call.inputs) == {"pixels", "token_ids", "lengths"}
