"""`detect` and `segment` over models whose boxes and masks the test decides."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.errors import (
    BundleError,
    InternalError,
    InvalidRequest,
    ServingError,
    TooLong,
    UnsupportedImage,
)
from inference.generation import Finished, Hypothesis
from inference.tasks import TASKS
from inference.tasks.detect import TASK as DETECT
from inference.tasks.detect import DetectPlan
from inference.tasks.detection.generated_boxes import WrittenPlan
from inference.tasks.detection.grounding import GroundedPlan, count_places, join_labels
from inference.tasks.segment import TASK as SEGMENT
from inference.tasks.segment import SegmentPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from inference.tasks.shared.served_task import sections_of
from tests.inference.tiny_models import (
    IMAGE,
    WordTokenizer,
    box_writer,
    detector,
    image_file,
    manifest,
    segmenter,
    served,
)
from triptych.errors import TriptychError
from triptych.tasks.detect import Box, Detection, DetectRequest, picture
from triptych.tasks.segment import Segmentation, SegmentRequest

DETECT_LIMITS = TaskLimits(max_client_batch_size=4)
BOXES = np.array([[0.5, 0.4, 0.5, 0.4], [0.9, 0.5, 0.6, 2.0]], np.float32)
REGIONS = np.array([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0]], np.float32)
BIASES = np.array([0.5, -1.0], np.float32)
OBJECTNESS = np.array([0.0, 2.0], np.float32)


def plan_boxes(
    images: list[bytes | ServingError],
    labels: list[str],
    manifest: Manifest | None = None,
    **fields: object,
) -> DetectPlan:
    request = DetectRequest(images=["beside"] * len(images), labels=labels, **fields)
    return DETECT.prepare(
        request, images, replace(served(manifest or detector()), task_limits=DETECT_LIMITS)
    )


def run_boxes(call: InferCall) -> Outputs:
    """Each image has both regions; a label's vector is the axis of its place."""
    rows = len(next(iter(call.inputs.values())))
    if "pixels" in call.inputs:
        found = {Role.BOXES: BOXES, Role.REGIONS: REGIONS, Role.REGION_BIASES: BIASES}
        found[Role.OBJECTNESS] = OBJECTNESS
        asked = set(call.outputs.values())
        return {
            role: np.repeat(value[None], rows, axis=0)
            for role, value in found.items()
            if role in asked
        }
    return {Role.EMBEDDING: np.eye(3, dtype=np.float32)[:rows]}


def detect(
    images: list[bytes | ServingError],
    labels: list[str],
    manifest: Manifest | None = None,
    **fields: object,
):
    made = plan_boxes(images, labels, manifest, **fields)
    return made.finish([run_boxes(call) for call in made.calls]).data


def edges(box: Box) -> tuple[float, float, float, float]:
    return box.x_min, box.y_min, box.x_max, box.y_max


def test_boxes_are_in_pixels_of_the_image_and_end_at_its_edges() -> None:
    (item,) = detect([image_file("red")], ["a", "b"])  # of 6 x 5 pixels, at 4 x 4 in the model
    assert (item.width, item.height) == (6, 5)
    second, first = item.boxes
    assert edges(first) == pytest.approx((1.5, 1.0, 4.5, 3.0))
    assert edges(second) == pytest.approx((3.6, 0.0, 6.0, 5.0))


def test_a_region_has_its_best_label_and_the_sigmoid_of_its_logit() -> None:
    (item,) = detect([image_file("red")], ["a", "b"])
    logits = {"b": 3.0 - 1.0, "a": 1.0 + 0.5}
    assert [box.label for box in item.boxes] == ["b", "a"]
    for box in item.boxes:
        assert box.score == pytest.approx(1 / (1 + np.exp(-logits[box.label])), rel=1e-6)


def test_boxes_of_a_padded_image_are_parts_of_its_square() -> None:
    padded = detector()
    padded = padded.model_copy(
        update={"image": padded.image.model_copy(update={"resize": "padded"})}
    )
    (item,) = detect([image_file("red")], ["a", "b"], padded)  # of 6 x 5 pixels
    second, first = item.boxes
    assert edges(first) == pytest.approx((1.5, 1.2, 4.5, 3.6))
    # cut where the image ends, not the square
    assert edges(second) == pytest.approx((3.6, 0.0, 6.0, 5.0))


def test_objectness_is_a_regions_own_and_absent_without_its_head() -> None:
    assert [box.objectness for box in detect([image_file("red")], ["a", "b"])[0].boxes] == [
        None
    ] * 2
    with_head = detector()
    image = with_head.graphs["image"]
    port = Tensor(name="objects", dtype="float32", shape=("B", 2), role=Role.OBJECTNESS)
    image = image.model_copy(update={"outputs": (*image.outputs, port)})
    with_head = with_head.model_copy(update={"graphs": {**with_head.graphs, "image": image}})
    (item,) = detect([image_file("red")], ["a", "b"], with_head)
    wanted = [1 / (1 + np.exp(-2.0)), 0.5]  # of the second region, whose label scores best
    assert [box.objectness for box in item.boxes] == pytest.approx(wanted)


def test_threshold_and_top_k_leave_boxes_out() -> None:
    image = [image_file("red")]
    assert [box.label for box in detect(image, ["a", "b"], threshold=0.85)[0].boxes] == ["b"]
    assert [box.label for box in detect(image, ["a", "b"], top_k=1)[0].boxes] == ["b"]
    assert detect(image, ["a", "b"], threshold=1.0)[0].boxes == []
    low = detect(image, ["c"], threshold=0.0)[0].boxes  # 0.5 and -1 are logits of no label
    assert len(low) == 2


def test_a_turned_photo_has_the_boxes_of_the_upright_one() -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.new("RGB", (30, 20)).save(file, "JPEG", exif=exif)
    (item,) = detect([file.getvalue()], ["a"])
    assert (item.width, item.height) == (20, 30)


def test_a_recipe_that_cuts_the_image_is_refused() -> None:
    cut = detector()
    cut = cut.model_copy(update={"image": cut.image.model_copy(update={"crop": (3, 3)})})
    with pytest.raises(BundleError, match="detect needs an image recipe that keeps the whole"):
        sections_of(cut, TASKS)


@pytest.fixture
def writer() -> LoadedModel:
    return box_writer()


def _asked(writer: LoadedModel, **fields: object) -> WrittenPlan:
    request = DetectRequest(images=["beside"], **fields)
    made = DETECT.prepare(request, [image_file("red")], writer)
    assert isinstance(made, WrittenPlan)
    return made


@pytest.mark.parametrize(
    ("fields", "words"),
    [({}, "find all"), ({"labels": ["a cat", "a dog"]}, "find a cat. a dog here")],
)
def test_a_generator_is_asked_for_labels_or_for_all(
    fields: dict[str, object], words: str, writer: LoadedModel
) -> None:
    (call,) = _asked(writer, **fields).calls
    assert call.inputs["source_ids"].tolist() == [3, 3, *writer.tokenizer.encode(words)]
    assert call.inputs["pixels"].shape == (4, 4, 3)


WRITTEN = (
    ("cat", -0.1),
    *((f"<loc_{place}>", -0.4) for place in (0, 500, 999, 999)),
    ("it", -0.1),
    *((f"<loc_{place}>", -0.2) for place in (1, 2, 3, 4)),
    *((f"<loc_{place}>", -0.3) for place in (250, 0, 750, 600)),
)
"""Words of an answer and their log-probabilities; the image is 6 x 5 pixels."""


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, [("it", -0.2), ("it", -0.3), ("cat", -0.4)]),
        ({"top_k": 1}, [("it", -0.2)]),
        ({"threshold": 0.73}, [("it", -0.2), ("it", -0.3)]),
        ({"labels": ["cat"]}, [("cat", -0.4)]),
    ],
)
def test_written_boxes_have_the_probability_of_their_places(
    fields: dict[str, object], found: list[tuple[str, float]], writer: LoadedModel
) -> None:
    words, log_probs = zip(*WRITTEN, strict=True)
    ids = tuple(writer.tokenizer.encode(" ".join(words), add_special_tokens=False))
    best = Hypothesis(ids, 0.0, "stop", log_probs)
    (item,) = _asked(writer, **fields).finish([Finished((best,), 5)]).data
    assert [box.label for box in item.boxes] == [label for label, _ in found]
    scores = [np.exp(log_prob) for _, log_prob in found]
    assert [box.score for box in item.boxes] == pytest.approx(scores)
    places = {(box.label, box.x_min, box.y_min, box.x_max, box.y_max) for box in item.boxes}
    wanted = {("cat", 0, 2, 5, 4), ("it", 0, 0, 0, 0), ("it", 1, 0, 4, 3)}
    assert places <= wanted
    assert (item.width, item.height) == (6, 5)


def test_only_a_generator_finds_things_without_labels(writer: LoadedModel) -> None:
    regions, everything = served(detector()), DetectRequest(images=["beside"])
    assert DETECT.accepts(everything, writer)
    assert not DETECT.accepts(everything, regions)
    assert DETECT.accepts(DetectRequest(images=["beside"], labels=["a"]), regions)
    refused = DETECT.refusal(everything, [regions])
    assert refused.message == "tiny-detect finds things by their labels: give some"
    assert refused.field == "labels"


def _drawn(box: Box) -> np.ndarray:
    item = Detection(index=0, boxes=[box], width=120, height=100)
    file = io.BytesIO()
    Image.new("RGB", (120, 100), "white").save(file, "PNG")
    return np.asarray(Image.open(io.BytesIO(picture([item], [file.getvalue()]))))


def test_picture_has_the_boxes_edges_and_leaves_the_rest() -> None:
    pixels = _drawn(Box(label="a", score=0.5, x_min=10, y_min=40, x_max=100, y_max=90))
    is_white = (pixels == 255).all(axis=-1)
    assert pixels.shape == (100, 120, 3)
    assert not is_white[70, 10]
    assert not is_white[90, 50:90].any()
    assert is_white[:39].all()
    assert is_white[70, 20:90].all()


def test_one_picture_for_several_images_is_refused() -> None:
    items = [Detection(index=place, boxes=[]) for place in range(2)]
    with pytest.raises(TriptychError, match="of one image, not of 2"):
        picture(items, [b"", b""])


GROUNDED_BOXES = np.array([[0.5, 0.5, 1.0, 0.4], [0.25, 0.5, 0.5, 1.0]], np.float32)
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
    made = DETECT.prepare(request, [image_file("red")] * images, _model(most))
    assert isinstance(made, GroundedPlan)
    return made


def _found(most: int = 12, **fields: object) -> Detection:
    made = _plan(["a cat", "a dog"], most=most, **fields)
    outputs = {Role.BOXES: GROUNDED_BOXES[None], Role.TOKEN_LOGITS: LOGITS[None]}
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
    assert edges(first) == pytest.approx((0, 0, 3, 5))


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
    section = DETECT.section_of(_model())
    assert count_places(1, 1, section.strides) == 2
    model = _model()
    scarce = model.manifest.model_copy(update={"tasks": {"detect": {"strides": ((8, 8),)}}})
    request = DetectRequest(images=["beside"], labels=["a"])
    with pytest.raises(UnsupportedImage, match="6x5 has too extreme an aspect ratio") as raised:
        DETECT.prepare(request, [image_file("red")], served(scarce, _Words()))
    assert raised.value.field == "images.0"


def test_labels_are_joined_as_the_processor_joins_them() -> None:
    assert join_labels(["A cat ", "remote control?"]) == "a cat. remote control?."


def test_the_canary_is_a_small_image_with_a_text() -> None:
    (call,) = DETECT.canary(_model())
    assert call.inputs["pixels"].shape == (1, 4, 4, 3)
    assert set(call.inputs) == {"pixels", "token_ids", "lengths"}


SEGMENT_LIMITS = TaskLimits(max_client_batch_size=9)
MASK_LOGITS = np.array([[0.0, 1.0, -1.0], [2.0, -200.0, 200.0]], np.float32)
"""Of a label whose vector is the first axis; other labels have them times their axis's number."""


def run_masks(call: InferCall) -> Outputs:
    if "pixels" in call.inputs:
        factors = call.inputs["texts"] @ np.array([1, 2, 3], np.float32)  # (B, K)
        return {Role.MASKS: factors[..., None, None] * MASK_LOGITS}
    return {Role.EMBEDDING: np.eye(3, dtype=np.float32)[: len(call.inputs["token_ids"])]}


def plan_masks(
    images: list[bytes | ServingError], labels: list[str], model: LoadedModel | None = None
) -> SegmentPlan:
    request = SegmentRequest(images=["beside"] * len(images), labels=labels)
    model = replace(model or served(segmenter()), task_limits=SEGMENT_LIMITS)
    return SEGMENT.prepare(request, images, model)


def segment(images: list[bytes | ServingError], labels: list[str]) -> list[Segmentation]:
    made = plan_masks(images, labels)
    following = made.following([run_masks(call) for call in made.calls])
    outcomes = [run_masks(call) for call in following.calls]
    assert following.following(outcomes) is None
    return following.finish(outcomes).data


def test_a_mask_has_the_sigmoid_of_its_labels_logits() -> None:
    (item,) = segment([image_file("red")], ["a", "b"])
    assert (item.width, item.height, item.mask_width, item.mask_height) == (6, 5, 3, 2)
    for factor, mask in enumerate(item.masks, start=1):
        wanted = 1 / (1 + np.exp(-factor * MASK_LOGITS.astype(np.float64)))
        assert mask.mean_probability == pytest.approx(wanted.mean(), rel=1e-6)
        assert mask.max_probability == pytest.approx(1.0)
        png = Image.open(io.BytesIO(base64.b64decode(mask.mask)))
        assert png.format == "PNG"
        np.testing.assert_array_equal(np.asarray(png), np.rint(255 * wanted))
    assert [mask.label for mask in item.masks] == ["a", "b"]


def test_images_with_many_labels_share_a_call_as_far_as_their_masks_fit() -> None:
    images = [image_file("red")] * 9
    for labels, sizes in ((1, [8, 1]), (20, [3, 3, 3]), (28, [2, 2, 2, 2, 1])):
        model = served(segmenter())
        texts = [f"t{number}" for number in range(labels)]
        made = plan_masks(images, texts, model)
        outcomes = [{Role.EMBEDDING: np.ones((call.rows, 3), np.float32)} for call in made.calls]
        following = made.following(outcomes)
        assert [call.rows for call in following.calls] == sizes
        assert {call.inputs["texts"].shape[1] for call in following.calls} == {labels}


def test_a_request_may_have_256_masks() -> None:
    assert plan_masks([image_file("red")] * 4, [f"t{number}" for number in range(64)]).calls


def test_labels_are_embedded_once() -> None:
    model = served(segmenter())
    made = plan_masks([image_file("red")], ["a", "b", "a"], model)
    assert [call.rows for call in made.calls] == [2]
    following = made.following([run_masks(call) for call in made.calls])
    assert following.calls[0].inputs["texts"].shape == (1, 3, 3)
    again = plan_masks([image_file("blue")], ["b"], model)
    assert again.calls == ()
    assert again.following([]) is not None


def test_a_label_that_cannot_be_embedded_fails_the_request() -> None:
    made = plan_masks([image_file("red")], ["a"])
    with pytest.raises(InternalError, match="broken"):
        made.following([InternalError("broken")])
    with pytest.raises(InternalError, match="broken"):
        made.finish([InternalError("broken")])


def test_the_canary_runs_both_graphs() -> None:
    calls = list(SEGMENT.canary(served(segmenter())))
    assert [call.model for call in calls] == ["tiny-segment", "tiny-segment-text"]
    assert calls[0].inputs["texts"].shape == (1, 1, 3)
