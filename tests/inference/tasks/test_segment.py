"""`segment` over a model whose masks the test decides."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from inference.bundle.manifest import Role
from inference.errors import InternalError, ServingError
from inference.tasks.segment import TASK, SegmentPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from tests.inference.tiny_models import image_file, segmenter, served
from triptych.tasks.segment import Segmentation, SegmentRequest

LIMITS = TaskLimits(max_client_batch_size=9)
LOGITS = np.array([[0.0, 1.0, -1.0], [2.0, -200.0, 200.0]], np.float32)
"""Of a label whose vector is the first axis; other labels have them times their axis's number."""


def run(call: InferCall) -> Outputs:
    if "pixels" in call.inputs:
        factors = call.inputs["texts"] @ np.array([1, 2, 3], np.float32)  # (B, K)
        return {Role.MASKS: factors[..., None, None] * LOGITS}
    return {Role.EMBEDDING: np.eye(3, dtype=np.float32)[: len(call.inputs["token_ids"])]}


def plan(
    images: list[bytes | ServingError], labels: list[str], model: LoadedModel | None = None
) -> SegmentPlan:
    request = SegmentRequest(images=["beside"] * len(images), labels=labels)
    model = replace(model or served(segmenter()), task_limits=LIMITS)
    return TASK.prepare(request, images, model)


def segment(images: list[bytes | ServingError], labels: list[str]) -> list[Segmentation]:
    made = plan(images, labels)
    following = made.following([run(call) for call in made.calls])
    outcomes = [run(call) for call in following.calls]
    assert following.following(outcomes) is None
    return following.finish(outcomes).data


def test_a_mask_has_the_sigmoid_of_its_labels_logits() -> None:
    (item,) = segment([image_file("red")], ["a", "b"])
    assert (item.width, item.height, item.mask_width, item.mask_height) == (6, 5, 3, 2)
    for factor, mask in enumerate(item.masks, start=1):
        wanted = 1 / (1 + np.exp(-factor * LOGITS.astype(np.float64)))
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
        made = plan(images, texts, model)
        outcomes = [{Role.EMBEDDING: np.ones((call.rows, 3), np.float32)} for call in made.calls]
        following = made.following(outcomes)
        assert [call.rows for call in following.calls] == sizes
        assert {call.inputs["texts"].shape[1] for call in following.calls} == {labels}


def test_a_request_may_have_256_masks() -> None:
    assert plan([image_file("red")] * 4, [f"t{number}" for number in range(64)]).calls


def test_labels_are_embedded_once() -> None:
    model = served(segmenter())
    made = plan([image_file("red")], ["a", "b", "a"], model)
    assert [call.rows for call in made.calls] == [2]
    following = made.following([run(call) for call in made.calls])
    assert following.calls[0].inputs["texts"].shape == (1, 3, 3)
    again = plan([image_file("blue")], ["b"], model)
    assert again.calls == ()
    assert again.following([]) is not None


def test_a_label_that_cannot_be_embedded_fails_the_request() -> None:
    made = plan([image_file("red")], ["a"])
    with pytest.raises(InternalError, match="broken"):
        made.following([InternalError("broken")])
    with pytest.raises(InternalError, match="broken"):
        made.finish([InternalError("broken")])


def test_the_canary_runs_both_graphs() -> None:
    calls = list(TASK.canary(served(segmenter())))
    assert [call.model for call in calls] == ["tiny-segment", "tiny-segment-text"]
    assert calls[0].inputs["texts"].shape == (1, 1, 3)
