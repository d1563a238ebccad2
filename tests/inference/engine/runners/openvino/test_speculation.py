"""Drafts change how many calls an answer takes, and no bit of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.sequence import SequenceState
from tests.inference.engine.runners.openvino.test_paged_runner import (
    close,
    core_of,
    endless,
    run,
    small_capacity,
    used_blocks,
)
from tests.inference.engine.runners.ort.test_runner import assert_alike, prompt_request
from tests.inference.engine.runners.ort.test_runner import request as source_request
from tests.inference.engine.toy_bundles import VOCABULARY

RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "recorded": {"top_log_probs": 3},
    "banned": {"suppress_tokens": (3, 4), "min_new_tokens": 20},
    "forced": {"forced_eos_token_id": 1},
    "sampled": {"do_sample": True, "temperature": 0.3, "top_k": 0, "seed": 7},
    "penalised": {"repetition_penalty": 1.2},
    "beams": {"num_beams": 2, "num_return_sequences": 2},
}
company = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 999),
        st.integers(1, 60),
        st.sampled_from(sorted(RULES)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
KINDS = pytest.mark.parametrize(
    "kind", [pytest.param("language", marks=pytest.mark.full), "quantised", "attention"]
)


def asked(kind: str, seed: int, tokens: int, rules: str, repeats: bool) -> EngineRequest:
    made = (source_request if kind == "attention" else prompt_request)(seed, 1, tokens)
    if repeats:
        made = replace(made, prompt_ids=(*made.prompt_ids[-9:], 5, 6, 7) * 2)
    return replace(
        made,
        rules=made.rules.model_copy(update=RULES[rules]),
        stream=rules != "beams",
    )


def without_drafts(capacity: Capacity) -> Capacity:
    return replace(capacity, draft_tokens=0)


@KINDS
@given(company=company)
def test_no_bit_depends_on_drafts(
    kind: str, request: pytest.FixtureRequest, company: list[tuple[int, int, int, str, bool]]
) -> None:
    runner: PagedRunner = request.getfixturevalue(f"paged_{kind}")
    capacity = small_capacity(runner, 200)
    requests = [asked(kind, *rest) for _, *rest in company]
    outcomes = run(EngineCore(runner, capacity), requests, [when for when, *_ in company])
    alone = [run(EngineCore(runner, without_drafts(capacity)), [each])[0] for each in requests]
    assert outcomes == alone  # every chunk of a stream, with all scores
    assert used_blocks(runner) == 0


def endless_prompts(count: int) -> list[EngineRequest]:
    return [endless(prompt_request(seed, 1, 90)) for seed in range(count)]


def test_drafts_save_calls(paged_attention: PagedRunner) -> None:
    capacity = small_capacity(paged_attention, 200)
    plain, drafted = (
        EngineCore(paged_attention, replace(capacity, draft_tokens=most)) for most in (0, 8)
    )
    requests = [endless(source_request(10, 1, 90))]  # whose answer repeats itself
    assert run(plain, requests) == run(drafted, requests)
    assert plain.metrics.row_steps == drafted.metrics.row_steps
    assert plain.metrics.draft_tokens == plain.metrics.accepted_tokens == 0
    assert drafted.metrics.draft_tokens > drafted.metrics.accepted_tokens > 60
    assert drafted.metrics.steps < plain.metrics.steps / 3


def test_a_draft_ends_where_rules_change(paged_attention: PagedRunner) -> None:
    made = source_request(10, 1, 60)
    for least in range(20, 30):  # end tokens are banned so long, and the others share their mass
        update = {"min_new_tokens": least, "renormalize_logits": True, "top_log_probs": 1}
        request = replace(made, rules=made.rules.model_copy(update=update))
        drafted = EngineCore(paged_attention, Capacity())
        [events] = run(drafted, [request])
        assert drafted.metrics.accepted_tokens > 10
        assert [events] == run(EngineCore(paged_attention, without_drafts(Capacity())), [request])


def test_drafts_take_no_memory_from_others(paged_language: PagedRunner) -> None:
    requests = endless_prompts(8)
    wanted = decode(paged_language, requests, without_drafts(Capacity(prefix_bytes=0)))
    counts = []
    capacity = small_capacity(paged_language, 14)
    for most in (0, 8):
        core = EngineCore(paged_language, replace(capacity, draft_tokens=most))
        outcomes = run(core, requests)
        assert core.metrics.failures == 0
        assert_alike([final_result(events) for events in outcomes], wanted)
        counts.append(core.metrics.put_back)
    assert counts[0] >= 3
    assert counts[1] <= counts[0]


def test_cached_prefixes_have_accepted_tokens_and_no_others(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=200, prefix_bytes=1 << 20)
    (first,) = endless_prompts(1)
    (events,) = run(core, [first])
    answer = final_result(events).hypotheses[0].token_ids
    assert core.metrics.draft_tokens > core.metrics.accepted_tokens > 0
    turn = replace(first, prompt_ids=(*first.prompt_ids, *answer, 3, 4))
    (events,) = run(core, [turn])
    assert core.metrics.prefix_tokens == len(first.decoder_ids) + len(answer) - 1
    close(core)
    plain = without_drafts(Capacity(prefix_bytes=0))
    assert_alike([final_result(events)], decode(paged_language, [turn], plain))


def test_tokens_of_a_source_are_drafts_where_the_vocabulary_has_them() -> None:
    made = replace(
        source_request(0, 1, 40),
        source_ids=np.array([7, 8, VOCABULARY, 9, 2]),
        prompt_ids=(7, 8),
    )
    sequence = SequenceState(made, lambda event: None)
    assert list(sequence.draft(2, VOCABULARY).token_ids) == [9, 2]


def test_drafts_end_before_the_cap() -> None:
    made = replace(endless_prompts(1)[0], prompt_ids=(2, 3) * 9)
    rules = made.rules.model_copy(update={"max_new_tokens": 3})
    sequence = SequenceState(replace(made, rules=rules), lambda event: None)
    assert len(sequence.draft(8, VOCABULARY).token_ids) == 2
