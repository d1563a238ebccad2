"""Prefill whole, in chunks or after a cached prefix gives the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.bundle.manifest import Bundle
from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.generation import Generation
from inference.sequences import Finished
from tests.export.conftest import Bundles, Twins
from tests.export.sources import source
from tests.export.twin import EXPORTED
from tests.export.twins import generators
from tests.inference.engine.staggered import run_staggered

NEW_TOKENS = 8
WHOLE = Capacity(prefix_bytes=0)
PIECES = Capacity(
    chunk_tokens=5, prefill_tokens_beside=8, prefix_block_tokens=4, prefix_min_tokens=4
)


def rules(bundle: Bundle, beams: int) -> Generation:
    defaults = bundle.manifest.generation
    changed = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": NEW_TOKENS}
    return defaults.model_copy(update=changed)


def prompts(longest: int) -> list[tuple[int, ...]]:
    """Some share a prefix, some are short."""
    random = np.random.default_rng(5)
    header = random.integers(1, 60, longest - 6).tolist()
    own = [random.integers(1, 60, n).tolist() for n in (1, 6, 3, 5, 2, 6)]
    return [tuple(o) if i % 3 == 2 else (*header, *o) for i, o in enumerate(own)]


def staggered(
    runner: OrtRunner,
    requests: list[EngineRequest],
    capacity: Capacity,
    *,
    shares_prefixes: bool = True,
) -> list[Finished]:
    """Results when a request arrives every second turn."""
    decoder = EngineCore(runner, capacity)
    outcomes = run_staggered(decoder, requests, range(0, 2 * len(requests), 2))
    shares_prefixes &= runner.shares_prefixes and capacity is PIECES
    assert bool(decoder.metrics.prefix_hits) == shares_prefixes
    return list(map(final_result, outcomes))


def assert_alike(found: list[Finished], wanted: list[Finished]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs in zip(one.hypotheses, other.hypotheses, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.score == pytest.approx(theirs.score, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", generators(is_transformers=True, has_source=False))
def test_language_model_generates_the_tokens_of_transformers(
    beams: int, name: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, EXPORTED), bundles(name, EXPORTED)
    wanted_rules = rules(bundle, beams)
    longest = (bundle.manifest.limits.max_total_tokens or 0) - NEW_TOKENS
    runner = OrtRunner(bundle, threads=1)
    requests = [EngineRequest(wanted_rules, prompt_ids=ids) for ids in prompts(longest)]
    found = staggered(runner, requests, PIECES)
    assert_alike(found, decode(runner, requests, WHOLE))
    for request, one in zip(requests, found, strict=True):
        sequences = twin.reference.generate(
            torch.tensor([request.prompt_ids]),
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=NEW_TOKENS,
        )
        for sequence, hypothesis in zip(sequences.tolist(), one.hypotheses, strict=True):
            length = len(hypothesis.token_ids)
            assert tuple(sequence[len(request.prompt_ids) :][:length]) == hypothesis.token_ids


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", generators(has_source=True))
def test_decoder_with_a_source_prefills_its_prompt_in_chunks(
    beams: int, name: str, bundles: Bundles
) -> None:
    bundle = bundles(name, EXPORTED)
    runner = OrtRunner(bundle, threads=1)
    requests = prompted(bundle, beams)
    found = staggered(runner, requests, PIECES, shares_prefixes=False)
    assert_alike(found, decode(runner, requests, WHOLE))


def prompted(bundle: Bundle, beams: int) -> list[EngineRequest]:
    """A source with a prompt each, of several lengths and beginnings."""
    random = np.random.default_rng(6)
    return [
        EngineRequest(
            rules(bundle, beams),
            **{
                "prompt_ids": tuple(random.integers(1, 20, length).tolist()),
                **source(bundle, random, length if bundle.manifest.images else 3 + length % 5),
            },
        )
        for length in (12, 2, 9, 1)
    ]
