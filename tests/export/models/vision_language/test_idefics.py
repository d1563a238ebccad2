"""Flamingo's prompts, images between the words, against Idefics' own processor and `generate`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.checkpoint.checkpoint import Checkpoint
from export.parity.torch_runner import TorchRunner
from export.registry import architecture
from export.tokenizer.prompt_images import IMAGE_TOKEN, image_places
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import CheckpointError, InvalidRequest
from tests.export.conftest import TwinPair, Twins
from tests.export.models.captions import unexported
from tests.export.models.interleaved import (
    assert_left_padded,
    image_mask,
    normalised,
    prompt_images,
)
from tests.export.sources import interleaved
from tests.export.twins import twin_of

PROMPTS = (9, 4, 1, 7)
NEW_TOKENS = 8


def _requests(twin: TwinPair, beams: int) -> list[EngineRequest]:
    bundle, random = unexported(twin), np.random.default_rng(2)
    rules = bundle.manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "num_beams": beams}
    )
    return [EngineRequest(rules, **interleaved(bundle, random, length)) for length in PROMPTS]


def _images(
    twin: TwinPair, requests: list[EngineRequest], tokens: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The images of all prompts as one batch of `transformers`, padded with black ones."""
    image, images = twin.prepared.image, prompt_images(twin)
    most = max(len(r.pixels) for r in requests if r.pixels is not None)
    pixels = np.zeros((len(requests), most, *image.shape), np.uint8)
    for row, request in enumerate(requests):
        if request.pixels is not None:
            pixels[row, : len(request.pixels)] = request.pixels
    return {
        "pixel_values": normalised(torch.from_numpy(pixels), image),
        "image_attention_mask": image_mask(tokens.tolist(), most, images.token_id, 2),
    }


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config", ["plain", "odd", "resampled, tied"])
def test_ragged_prompts_generate_what_a_left_padded_batch_does(
    config: str, beams: int, twins: Twins
) -> None:
    twin = twins("idefics", config)
    requests = _requests(twin, beams)
    runner = TorchRunner(twin.graphs(), unexported(twin).manifest)
    assert_left_padded(twin.reference, runner, requests, partial(_images, twin, requests))


def _request(twin: TwinPair, ids: tuple[int, ...], images: int, **change: Any) -> EngineRequest:
    manifest = unexported(twin).manifest
    assert manifest.generation is not None
    assert manifest.image is not None
    pixels = np.zeros((images, *manifest.image.shape), np.uint8) if images else None
    return EngineRequest(manifest.generation, **{"prompt_ids": ids, "pixels": pixels, **change})


def test_engine_refuses_other_than_one_image_for_each_place(twins: Twins) -> None:
    twin = twins("idefics", "odd")
    validator = RequestValidator(unexported(twin).manifest)
    assert validator.validate(_request(twin, (61, 5, 61), 2)).source_length == 2 * 5
    assert validator.validate(_request(twin, (5,), 0)).source_length == 0
    for ids, images in (((5,), 1), ((61,), 0), ((61, 61), 1)):
        with pytest.raises(InvalidRequest, match=f"{ids.count(61)} places for images"):
            validator.validate(_request(twin, ids, images))
    with pytest.raises(InvalidRequest, match=r"expected \(images, 32, 32, 3\)"):
        validator.validate(_request(twin, (61,), 0, pixels=np.zeros((32, 32, 3), np.uint8)))
    with pytest.raises(InvalidRequest, match="takes 31"):
        validator.validate(_request(twin, (5,) * 32, 0))


def _folder(folder: Path, *, tokens: tuple[str, ...], **config: Any) -> Checkpoint:
    added = [{"content": text, "id": 60 + place} for place, text in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"<s>": 1}}, "added_tokens": added})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    values = dict(twin_of("idefics").configs["plain"])
    del values[IMAGE_TOKEN]
    return Checkpoint(folder, "x", values | config)


AROUND, PLACE = "<fake_token_around_image>", "<image>"


def test_id_of_the_image_token_is_the_tokenizers(tmp_path: Path) -> None:
    declared = architecture("idefics")
    checkpoint = _folder(tmp_path, tokens=(AROUND, "<other>", PLACE))
    assert declared.configuration(checkpoint).image_token == 62
    section = image_places(torch.nn.Identity(), checkpoint)
    assert section == {"images": {"place": PLACE, "around": AROUND, "begin": "<s>"}}
    assert declared.configuration(_folder(tmp_path, tokens=(), image_token_id=7)).image_token == 7


def test_tokenizer_without_an_image_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no token <image>"):
        architecture("idefics").configuration(_folder(tmp_path, tokens=(AROUND,)))
    with pytest.raises(CheckpointError, match="no token <fake_token_around_image>"):
        image_places(torch.nn.Identity(), _folder(tmp_path, tokens=(PLACE,)))
