"""Boxes and masks for labels behind HTTP and gRPC against the models of `transformers`.

The checkpoints are the tests' twins, with tokenizers and image recipes as such folders have them.
"""

from __future__ import annotations

import base64
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient, close_session
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image
from transformers import (
    AutoModelForZeroShotObjectDetection,
    CLIPSegForImageSegmentation,
    GroundingDinoImageProcessorPil,
    GroundingDinoProcessor,
    PreTrainedTokenizerFast,
    ViTImageProcessorPil,
)

from tests.e2e.conftest import PROGRAM, Stack, running
from tests.e2e.interleaved import random_pictures
from tests.e2e.pictured import (
    DETECTORS,
    GROUNDED,
    GROUNDED_RUNTIMES,
    REPOSITORY,
    export_labelled,
)
from tests.pictures import encoded, noise
from triptych import Client, GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

LABELS = ["w5 w9", "w7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, exported."""
    made = tmp_path_factory.mktemp("labelled")
    export_labelled(made)
    return made


@pytest.fixture(scope="module")
def stack(folder: Path) -> Iterator[Stack]:
    with running(folder / REPOSITORY, folder) as started:
        yield started


@pytest.mark.parametrize("name", DETECTORS)
def test_boxes_are_those_of_transformers(name: str, folder: Path, stack: Stack) -> None:
    (picture,) = random_pictures(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / name)
    recipe = DETECTORS[name].from_pretrained(folder / name)
    model = AutoModelForZeroShotObjectDetection.from_pretrained(folder / name).eval()
    opened = Image.open(io.BytesIO(picture))
    texts = tokenizer(LABELS, return_tensors="pt", padding="max_length", max_length=16)
    with torch.no_grad():
        output = model(
            input_ids=texts["input_ids"],
            attention_mask=texts["attention_mask"],
            **recipe(opened, return_tensors="pt"),
        )
    scores = output.logits.max(dim=-1).values.sigmoid().sort(descending=True).values[0]
    threshold = float(scores[len(scores) // 2 - 1 :][:2].mean())  # half of the regions reach it
    (wanted,) = recipe.post_process_object_detection(
        output, threshold=threshold, target_sizes=[(opened.height, opened.width)]
    )
    given: Any = {"labels": LABELS, "threshold": threshold, "model": name}
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        (item,) = client.detect(picture, **given).data
        (over_grpc,) = grpc.detect(picture, **given).data
    assert over_grpc.model_dump() == item.model_dump()
    assert item.boxes
    assert len(item.boxes) == len(wanted["scores"])
    order = wanted["scores"].argsort(descending=True).tolist()
    limits = torch.tensor([opened.width, opened.height] * 2)
    for box, place in zip(item.boxes, order, strict=True):
        assert box.label == LABELS[wanted["labels"][place]]
        assert box.score == pytest.approx(float(wanted["scores"][place]), abs=1e-5)
        corners = torch.minimum(wanted["boxes"][place].clamp(min=0), limits).tolist()
        assert [box.x_min, box.y_min, box.x_max, box.y_max] == pytest.approx(corners, abs=1e-3)
        assert (box.objectness is not None) == (name == "owlv2")


@pytest.mark.parametrize("name", GROUNDED_RUNTIMES)
@pytest.mark.parametrize("size", [(90, 60), (60, 200)])
def test_labels_that_are_read_with_a_picture_find_what_transformers_finds(
    size: tuple[int, int], name: str, folder: Path, stack: Stack
) -> None:
    labels, picture = ["W5 w9", "w7?", "w11 w12 w13"], encoded(noise(*size))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / GROUNDED)
    recipe = GroundingDinoImageProcessorPil.from_pretrained(folder / GROUNDED)
    processor = GroundingDinoProcessor(recipe, tokenizer)
    model = AutoModelForZeroShotObjectDetection.from_pretrained(folder / GROUNDED).eval()
    opened = Image.open(io.BytesIO(picture))
    inputs = processor(images=opened, text=[labels], return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    scores = output.logits.sigmoid()
    best = scores.amax(dim=-1).sort(descending=True).values[0]
    threshold = float(best[len(best) // 2 - 1 :][:2].mean())  # half of the regions reach it
    words = scores[0, :, : inputs["input_ids"].shape[1]].flatten().sort().values
    text_threshold = float(words[2 * len(words) // 3 :][:2].mean())
    (wanted,) = processor.post_process_grounded_object_detection(
        output,
        threshold=threshold,
        text_threshold=text_threshold,
        target_sizes=[(opened.height, opened.width)],
    )
    given: Any = {"labels": labels, "threshold": threshold, "text_threshold": text_threshold}
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        (item,) = client.detect(picture, **given, model=name).data
        (over_grpc,) = grpc.detect(picture, **given, model=name).data
        (first, second) = client.detect([picture, picture], **given, model=name).data
    assert over_grpc.model_dump() == item.model_dump() == first.model_dump()
    assert second.boxes == item.boxes
    assert item.boxes
    assert len(item.boxes) == len(wanted["scores"])
    order = wanted["scores"].argsort(descending=True, stable=True).tolist()
    limits = torch.tensor([opened.width, opened.height] * 2)
    for box, place in zip(item.boxes, order, strict=True):
        assert box.label == wanted["text_labels"][place]
        assert box.score == pytest.approx(float(wanted["scores"][place]), abs=1e-5)
        corners = torch.minimum(wanted["boxes"][place].clamp(min=0), limits).tolist()
        assert [box.x_min, box.y_min, box.x_max, box.y_max] == pytest.approx(corners, abs=1e-2)
    assert len({box.label for box in item.boxes}) > 1


@pytest.mark.parametrize("name", [*DETECTORS, GROUNDED])
def test_the_client_of_hugging_face_is_told_where_labels_go(name: str, stack: Stack) -> None:
    (picture,) = random_pictures(1)
    path = f"{stack.url}/hf/detect/{name}"
    with pytest.raises(HfHubHTTPError, match=r"parameters\.candidate_labels") as raised:
        InferenceClient(path, timeout=60).object_detection(picture)
    assert raised.value.response.status_code == 422
    close_session()
    parameters = {"candidate_labels": LABELS, "threshold": 0.0}
    body = {"inputs": base64.b64encode(picture).decode(), "parameters": parameters}
    objects = httpx.post(path, json=body, timeout=60).raise_for_status().json()
    with Client(stack.url) as client:
        boxes = client.detect(picture, labels=LABELS, threshold=0.0, model=name).data[0].boxes
    assert boxes
    for each, box in zip(objects, boxes, strict=True):
        assert (each["label"], each["score"]) == (box.label, box.score)
        corners = (box.x_min, box.y_min, box.x_max, box.y_max)
        assert tuple(each["box"].values()) == tuple(map(int, corners))
        assert list(each["box"]) == ["xmin", "ymin", "xmax", "ymax"]


def test_masks_are_those_of_transformers(folder: Path, stack: Stack, tmp_path: Path) -> None:
    (picture,) = random_pictures(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "clipseg")
    recipe = ViTImageProcessorPil.from_pretrained(folder / "clipseg")
    model = CLIPSegForImageSegmentation.from_pretrained(folder / "clipseg").eval()
    opened = Image.open(io.BytesIO(picture))
    texts = tokenizer(LABELS, return_tensors="pt", padding="max_length", max_length=16)
    pixels = recipe([opened] * len(LABELS), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        logits = model(
            input_ids=texts["input_ids"],
            attention_mask=texts["attention_mask"],
            pixel_values=pixels,
        ).logits
    with Client(stack.url) as client, GrpcClient(stack.grpc_address) as grpc:
        (item,) = client.segment(picture, labels=LABELS).data
        (over_grpc,) = grpc.segment(picture, labels=LABELS).data
    assert over_grpc.model_dump() == item.model_dump()
    assert (item.width, item.height) == opened.size
    assert item.masks
    for mask, wanted in zip(item.masks, logits.sigmoid().numpy(), strict=True):
        assert (item.mask_height, item.mask_width) == wanted.shape
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(mask.mask))))
        np.testing.assert_allclose(shown / 255, wanted, rtol=0, atol=0.5 / 255 + 1e-5)
        assert mask.mean_probability == pytest.approx(wanted.mean(), abs=1e-5)
        assert mask.max_probability == pytest.approx(wanted.max(), abs=1e-5)
    assert [mask.label for mask in item.masks] == LABELS
    assert item.masks[0].mask != item.masks[1].mask

    (tmp_path / "photo.png").write_bytes(picture)
    command = [
        *(*PROGRAM, "segment", str(tmp_path / "photo.png"), "--label", LABELS[0]),
        *("--url", stack.url, "--output", str(tmp_path / "mask.png")),
    ]
    subprocess.run(command, check=True)
    with Image.open(tmp_path / "mask.png") as written:
        assert written.size == opened.size


def test_the_command_draws_the_boxes_of_a_padded_image(
    folder: Path, stack: Stack, tmp_path: Path
) -> None:
    (picture,) = random_pictures(1)
    (tmp_path / "photo.png").write_bytes(picture)
    command = [
        *(*PROGRAM, "detect", str(tmp_path / "photo.png"), "--label", LABELS[0]),
        *("--threshold", "0", "--model", "owlv2", "--url", stack.url),
        *("--output", str(tmp_path / "boxes.png")),
    ]
    subprocess.run(command, check=True)
    with Image.open(tmp_path / "boxes.png") as written:
        drawn = np.asarray(written)
    opened = np.asarray(Image.open(io.BytesIO(picture)))
    assert drawn.shape == opened.shape
    assert (drawn != opened).any()
