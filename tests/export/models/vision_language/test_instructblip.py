"""InstructBLIP: images are read for an instruction, in the words of a second tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.ort.image_states import ImageStates
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest, TooLong
from tests.export.conftest import Bundles, Twins
from tests.export.models.captions import unexported
from tests.inference.engine.staggered import run_staggered

IMAGE, PROMPT = 61, (*[61] * 4, 5, 9)


def _request(bundle: Any, instruction: tuple[int, ...] | None) -> EngineRequest:
    rules = bundle.manifest.generation.model_copy(update={"max_new_tokens": 6, "num_beams": 1})
    shape = (1, *bundle.manifest.image.shape)
    pixels = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    return EngineRequest(
        rules, None if instruction is None else np.array(instruction), pixels, prompt_ids=PROMPT
    )


def test_an_image_has_another_name_for_another_instruction(twins: Twins) -> None:
    """By which the states of images are kept, and the prefixes of prompts."""
    bundle = unexported(twins("instructblip", "odd"))
    validator = RequestValidator(bundle.manifest)
    requests = [validator.validate(_request(bundle, ids)) for ids in ((9, 4), (30, 2), (9, 4))]
    for names in (
        [one.prefix_ids for one in requests],
        [
            ImageStates.key(one.pixels[0], one.source_ids)
            for one in requests
            if one.pixels is not None
        ],
    ):
        assert names[0] == names[2] != names[1]


@pytest.mark.full
def test_an_image_and_its_prefix_are_kept_for_one_instruction(bundles: Bundles) -> None:
    bundle = bundles("instructblip", "odd")
    runner, validator = OrtRunner(bundle, threads=1), RequestValidator(bundle.manifest)
    core = EngineCore(runner, Capacity(prefix_block_tokens=2, prefix_min_tokens=2))
    found = []
    for instruction, cached in (((9, 4, 5), 0), ((30, 2), 0), ((9, 4, 5), 5)):
        request = validator.validate(_request(bundle, instruction))
        before = core.metrics.prefix_tokens
        (events,) = run_staggered(core, [request], [0])
        assert core.metrics.prefix_tokens - before == cached
        found.append(final_result(events).hypotheses[0].token_ids)
        (alone,) = decode(OrtRunner(bundle, threads=1), [request])
        assert found[-1] == alone.hypotheses[0].token_ids
    assert found[0] == found[2] != found[1]


def test_engine_refuses_an_image_without_or_with_a_long_instruction(twins: Any) -> None:
    twin = twins("instructblip", "odd")
    manifest = unexported(twin).manifest
    validator, bundle = RequestValidator(manifest), unexported(twin)
    valid = validator.validate(_request(bundle, (5, 6)))
    assert (valid.source_length, valid.prompt_tokens) == (4, len(PROMPT))
    with pytest.raises(InvalidRequest, match="source_ids is missing"):
        validator.validate(_request(bundle, None))
    with pytest.raises(InvalidRequest, match="source_ids holds ids outside"):
        validator.validate(_request(bundle, (64,)))
    limit = manifest.limits.max_input_tokens
    with pytest.raises(TooLong, match=f"source_ids has {limit + 1} tokens"):
        validator.validate(replace(_request(bundle, None), source_ids=np.ones(limit + 1, np.int64)))
