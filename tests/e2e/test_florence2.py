"""Florence-2 behind HTTP and gRPC against `transformers`: captions, tasks and boxes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient, close_session
from PIL import Image

from export.pipeline.cli import export
from tests.e2e.conftest import Stack, running
from tests.e2e.interleaved import random_pictures
from tests.export.florence2_folder import NEW_TOKENS, read_boxes, wanted, write
from triptych import Client, GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

NAME = "florence"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Any, Any]]:
    """The stack, the processor and the model."""
    folder = tmp_path_factory.mktemp("florence2")
    processor, original = write(folder / NAME, max_length=NEW_TOKENS + 1)
    export(str(folder / NAME), repository=folder / "repository")
    with running(folder / "repository", folder) as stack:
        yield stack, processor, original


def test_captions_and_tasks_are_those_of_transformers(served: tuple[Stack, Any, Any]) -> None:
    stack, processor, original = served
    (picture,) = random_pictures(1)
    asked: tuple[dict[str, Any], ...] = ({}, {"num_beams": 1})
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        for rules in asked:
            caption = wanted(processor, original, picture, "<CAPTION>", **rules)
            answer = wanted(processor, original, picture, "<REGION_TO_OCR><loc_5><loc_9>", **rules)
            assert caption != answer
            for each in (client, grpc):
                found = each.caption(picture, **rules).data[0]
                assert found.text == caption.strip()
                prompt = "<image><REGION_TO_OCR><loc_5><loc_9>"
                continued = each.generate(prompt, images=[picture], **rules).data[0]
                assert continued.text == answer
        streamed = client.caption_stream(picture)  # greedy
        greedy = wanted(processor, original, picture, "<CAPTION>", num_beams=1)
        assert "".join(part.text for part in streamed if part.text) == greedy.strip()


def test_boxes_are_those_of_transformers(served: tuple[Stack, Any, Any]) -> None:
    stack, processor, original = served
    (picture,) = random_pictures(1)
    with Image.open(io.BytesIO(picture)) as opened:
        size = opened.size
    asked = {"<OD>": None, "<CAPTION_TO_PHRASE_GROUNDING>": ["a cat", "a dog"]}
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        for task, labels in asked.items():
            answer = wanted(processor, original, picture, task + ". ".join(labels or ()))
            boxes = sorted(one for one in read_boxes(processor, answer, task, size) if one[0])
            assert boxes
            for each in (client, grpc):
                (item,) = each.detect(picture, labels=labels).data
                assert (item.width, item.height) == size
                scores = [box.score for box in item.boxes or ()]
                assert scores == sorted(scores, reverse=True)
                assert all(0 < score <= 1 for score in scores)
                found = sorted(
                    (box.label, (box.x_min, box.y_min, box.x_max, box.y_max))
                    for box in item.boxes or ()
                )
                assert [one for one in found if one[0]] == boxes


def test_objects_are_those_of_transformers_with_the_client_of_hugging_face(
    served: tuple[Stack, Any, Any],
) -> None:
    stack, processor, original = served
    (picture,) = random_pictures(1)
    with Image.open(io.BytesIO(picture)) as opened:
        size = opened.size
    answer = wanted(processor, original, picture, "<OD>")
    boxes = sorted(one for one in read_boxes(processor, answer, "<OD>", size) if one[0])
    assert boxes
    hub = InferenceClient(f"{stack.url}/hf/detect/{NAME}", timeout=60)
    for parameters in ({}, {"threshold": 0.0}):  # an image as it is, and as base64
        objects = hub.object_detection(picture, **parameters)
        scores = [each.score for each in objects]
        assert scores == sorted(scores, reverse=True)
        found = sorted(
            (each.label, (each.box.xmin, each.box.ymin, each.box.xmax, each.box.ymax))
            for each in objects
        )
        assert [one for one in found if one[0]] == boxes
    middle = scores[len(scores) // 2]
    surer = hub.object_detection(picture, threshold=middle)
    assert [each.score for each in surer] == [score for score in scores if score >= middle]
    close_session()
