"""Over real graphs: seeded samples are equal alone, together, joining late and streamed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.ort.device import OrtDevice
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search import truncation
from inference.engine.search.request import EngineRequest, Event
from inference.generation import Generation
from inference.sequences import Finished, TokenChunk
from tests.inference.engine.fake_runner import FakeRunner
from tests.inference.engine.staggered import run_staggered
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_logits,
    recurrent_bundle,
)

WAYS: list[dict[str, object]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_p": 0.8},
    {"top_k": 5, "num_return_sequences": 3},
    {"min_p": 0.05, "repetition_penalty": 1.4},
    {"typical_p": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"best_of": 4, "num_return_sequences": 2, "logit_bias": {3: 1.0}},
    {"do_sample": False, "repetition_penalty": 1.3, "top_log_probs": 2},
    {"do_sample": False, "num_beams": 3, "repetition_penalty": 1.2, "min_new_tokens": 5},
    {"do_sample": False},
]


def request(number: int, *, has_pixels: bool = False) -> EngineRequest:
    rng = np.random.default_rng(number)
    rules = Generation.model_validate(
        {
            "decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
            "max_new_tokens": int(rng.integers(1, 30)), "do_sample": True, "seed": number,
            **WAYS[number % len(WAYS)],
        }
    )  # fmt: skip
    prompt = tuple(rng.integers(0, VOCABULARY, rng.integers(0, 5)).tolist())
    if has_pixels:
        pixels = rng.integers(0, 256, (2, 2, 3)).astype(np.uint8)
        return EngineRequest(rules, pixels=pixels, prompt_ids=prompt)
    return EngineRequest(rules, rng.integers(0, VOCABULARY, rng.integers(1, 40)), prompt_ids=prompt)


@pytest.fixture(params=["attention", "recurrent"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, device: OrtDevice
) -> tuple[OrtRunner, bool]:
    """A runner, and whether it takes pixels."""
    build = attention_bundle if request.param == "attention" else recurrent_bundle
    runner = OrtRunner(build(tmp_path_factory.mktemp("toy")), threads=1, device=device)
    return runner, request.param == "recurrent"


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws from few candidates and from the whole vocabulary must agree."""
    monkeypatch.setattr(truncation, "DEFAULT_CANDIDATES", 6)


def staggered(runner: OrtRunner, requests: list[EngineRequest]) -> list[list[Event]]:
    return run_staggered(EngineCore(runner, Capacity(rows=32)), requests)


def tokens(found: Finished) -> list[tuple[int, ...]]:
    return [hypothesis.token_ids for hypothesis in found.hypotheses]


def test_samples_do_not_depend_on_the_batch_or_the_time_of_admission(
    served: tuple[OrtRunner, bool],
) -> None:
    runner, has_pixels = served
    requests = [request(number, has_pixels=has_pixels) for number in range(40)]
    alone = [tokens(decode(runner, [one])[0]) for one in requests]
    assert [tokens(found) for found in decode(runner, requests)] == alone
    assert [tokens(final_result(events)) for events in staggered(runner, requests)] == alone


def test_streamed_samples_are_the_collected_ones(served: tuple[OrtRunner, bool]) -> None:
    runner, has_pixels = served
    requests = [request(number, has_pixels=has_pixels) for number in range(40)]
    lone = [one for one in requests if one.rules.rows == 1]
    wanted = [tokens(found)[0] for found in decode(runner, lone)]
    streams = staggered(runner, [replace(one, stream=True) for one in lone])
    streamed = [
        tuple(
            token for event in events if isinstance(event, TokenChunk) for token in event.token_ids
        )
        for events in streams
    ]
    assert streamed == wanted


def test_samples_are_those_of_the_equations(tmp_path: Path, device: OrtDevice) -> None:
    runner = OrtRunner(attention_bundle(tmp_path), threads=1, device=device)
    requests = [request(number) for number in range(40)]
    reference = FakeRunner(attention_logits, VOCABULARY)
    for found, wanted in zip(decode(runner, requests), decode(reference, requests), strict=True):
        assert tokens(found) == tokens(wanted)
        for one, other in zip(found.hypotheses, wanted.hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-3, abs=1e-4)
            assert one.log_probs == pytest.approx(other.log_probs, rel=1e-3, abs=1e-3)


def test_the_samples_are_worth_comparing(served: tuple[OrtRunner, bool]) -> None:
    runner, has_pixels = served
    requests = [request(number, has_pixels=has_pixels) for number in range(40)]
    answers = [tokens(found)[0] for found in decode(runner, requests)]
    assert len(set(map(len, answers))) > 5
    assert len({token for answer in answers for token in answer}) > VOCABULARY / 2
