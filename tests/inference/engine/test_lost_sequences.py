"""A sequence that is lost goes on with its tokens at the next one, as if it had not been lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from inference.bundle.manifest import Bundle
from inference.engine.engine_core import EngineCore, decode
from inference.engine.runners.ort.device import OrtDevice
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest
from inference.generation import Generation, Overrides
from inference.sequences import Finished, TokenChunk
from tests.inference.engine.test_greedy_steps import BUNDLES, RULES, requests

CHANGES: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 4, "top_k": 9, "eos_token_ids": ()},
    "penalised": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": ((3,), (9, 5)),
        "eos_token_ids": (),
        "top_log_probs": 2,
    },
    "forced": {"forced_bos_token_id": 5, "forced_eos_token_id": 1, "min_new_tokens": 6},
    "sampled with log-probabilities": {"do_sample": True, "seed": 8, "top_log_probs": 3},
}


@pytest.fixture(scope="module", params=BUNDLES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return BUNDLES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def runner(bundle: Bundle, device: OrtDevice) -> OrtRunner:
    return OrtRunner(bundle, threads=1, device=device)


def lost(request: EngineRequest, token_ids: tuple[int, ...]) -> EngineRequest:
    """The request of a sequence that was lost with these tokens."""
    overrides = Overrides(generated_ids=token_ids)
    return replace(request, rules=request.rules.with_overrides(overrides))


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_sequence_goes_on_at_the_next_token(
    bundle: Bundle, runner: OrtRunner, changes: dict[str, object]
) -> None:
    asked = requests(bundle, RULES.model_copy(update=changes), count=3)
    whole = [one.best for one in decode(runner, asked)]
    cuts = [
        (number, cut)
        for number, one in enumerate(whole)
        for cut in sorted({1, 2, len(one.token_ids) // 2, len(one.token_ids)} - {0})
    ]
    again = [lost(asked[number], whole[number].token_ids[:cut]) for number, cut in cuts]
    for (number, cut), one in zip(cuts, decode(runner, again), strict=True):
        wanted = whole[number]
        assert one.best.token_ids == wanted.token_ids[cut:]
        assert one.best.finish_reason == wanted.finish_reason
        assert one.best.log_probs == pytest.approx(wanted.log_probs[cut:], abs=1e-4)
        assert [[token for token, _ in top] for top in one.best.top] == [
            [token for token, _ in top] for top in wanted.top[cut:]
        ]
        assert one.prompt_tokens == asked[number].prompt_tokens


def test_stream_has_the_tokens_behind_those_given_alone(bundle: Bundle, runner: OrtRunner) -> None:
    rules = RULES.model_copy(update={"eos_token_ids": ()})
    request = replace(requests(bundle, rules, count=1)[0], stream=True)
    (whole,) = decode(runner, [request])
    events: list[Event] = []
    core = EngineCore(runner, Capacity())
    core.add(SequenceState(lost(request, whole.best.token_ids[:7]), events.append))
    while not core.is_idle:
        core.step()
    sent = [token for one in events if isinstance(one, TokenChunk) for token in one.token_ids]
    assert tuple(sent) == whole.best.token_ids[7:]
    assert isinstance(events[-1], Finished)
    assert events[-1].best.token_ids == tuple(sent)


@pytest.mark.parametrize(
    "other",
    [
        {"num_beams": 2},
        {"do_sample": True, "num_return_sequences": 2},
        {"given_ids": (3,)},
        {"return_alignment": True},
    ],
    ids=["beams", "samples", "given tokens", "alignment"],
)
def test_what_has_no_single_next_token_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="generated_ids exclude"):
        Generation(pad_token_id=0, max_new_tokens=5, generated_ids=(2,), **other)


def test_tokens_outside_the_vocabulary_are_refused(bundle: Bundle) -> None:
    request = requests(bundle, count=1)[0]
    with pytest.raises(InvalidRequest, match="generated_ids holds ids outside"):
        RequestValidator(bundle.manifest).validate(lost(request, (100_000,)))
