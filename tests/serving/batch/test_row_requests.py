"""Rows whose requests need calls that depend on the outcomes of others, or are limited."""

from __future__ import annotations

import io
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
from PIL import Image

from inference.bundle.manifest import Role
from inference.tasks import classify, segment
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call, InferCall, Outcome
from serving.batch.row_requests import BATCHED, RowRequests
from serving.batch.rows import Row
from serving.local_model import LocalModel
from tests.inference import text_models
from tests.inference.tiny_models import segmenter, served
from triptych.tasks.classify import Classes, ClassifyRequest
from triptych.tasks.segment import Segmentation, SegmentRequest


class _Local:
    """Answers calls at once."""

    def __init__(self, model: LoadedModel | None = None) -> None:
        self.model = model or served(segmenter())
        self.calls: list[InferCall] = []

    def submit(self, call: Call) -> Future[Outcome]:
        assert isinstance(call, InferCall)
        self.calls.append(call)
        found: Future[Outcome] = Future()
        is_text = Role.EMBEDDING in call.outputs.values()
        vectors = {Role.EMBEDDING: np.eye(3, dtype=np.float32)[: call.rows]}
        found.set_result(vectors if is_text else text_models.run(call))
        return found


def _image(red: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_masks_of_rows_are_made_of_labels_that_are_embedded_before() -> None:
    local = _Local()
    template = SegmentRequest(images=[""], labels=["a", "b", "c"])
    requests = RowRequests(cast(LocalModel, local), segment.TASK, template, "images", 0)
    rows: list[Any] = [Row("f", number, _image(2 * number), {}) for number in range(90)]
    items, usage = requests.answers(rows)
    assert all(isinstance(item, Segmentation) and item.masks for item in items)
    masks = [item.masks for item in items if isinstance(item, Segmentation)]
    assert [[mask.label for mask in found or ()] for found in masks] == [["a", "b", "c"]] * 90
    means = [found[0].mean_probability for found in masks if found]
    assert means == sorted(set(means))  # each image's own, in order
    images = [call.rows for call in local.calls if "pixels" in call.inputs]
    assert sum(images) == 90
    assert len(local.calls) - len(images) == 2  # requests of 85 rows and 5, planned before
    assert usage.prompt_tokens > 0


class _Locked(_Local):
    """Expects requests of one shard alone while it takes them."""

    requests: RowRequests

    def submit(self, call: Call) -> Future[Outcome]:
        assert self.requests._submitting.locked()
        return super().submit(call)


def _classified(count: int) -> tuple[_Local, list[Any]]:
    """Different texts of 1 to 10 words in a fixed disorder, and their items."""
    local = _Locked(served(text_models.text_classifier(activation="none")))
    template = ClassifyRequest(texts=["row"])
    local.requests = RowRequests(cast(LocalModel, local), classify.TASK, template, "texts", 0)
    texts = [f"{number:04}" + " word" * (7 * number % 10) for number in range(count)]
    rows: list[Any] = [Row("f", number, text, {}) for number, text in enumerate(texts)]
    items, _ = local.requests.answers(rows)
    return local, [(text, item) for text, item in zip(texts, items, strict=True)]


def test_rows_of_similar_length_share_requests_and_answers_keep_their_order() -> None:
    local, found = _classified(2 * BATCHED)
    for text, item in found:
        scores = {one.label: one.score for one in item.labels}
        assert scores["y"] == len(text.split()) + 1  # and the end token
    first = [int(call.inputs["lengths"].min()) for call in local.calls]
    rows = np.cumsum([call.rows for call in local.calls])
    assert min(first[: int(np.searchsorted(rows, BATCHED)) + 1]) == 6 + 1  # of the longer half


def test_rows_that_are_too_long_are_cut_and_say_so() -> None:
    local = _Local(served(text_models.text_classifier()))
    for fields in ({}, {"truncate": True, "truncation_direction": "left"}):
        template = ClassifyRequest(texts=[""], **fields)
        requests = RowRequests(cast(LocalModel, local), classify.TASK, template, "texts", 0)
        rows: list[Any] = [Row("f", n, "a " * count, {}) for n, count in enumerate((3, 30, 4))]
        items, _ = requests.answers(rows)
        found = cast(list[Classes], items)
        if fields:
            assert [item.error for item in found] == [None] * 3
            assert [item.truncated_characters for item in found] == [None, 37, None]
        else:
            assert [item.error is None for item in found] == [True, False, True]
