"""Several greedy steps in one call change how many calls an answer takes, and no bit of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.engine_core import EngineCore, final_result
from inference.engine.runners.candidates import CandidateRequest, Edit, GreedyRule
from inference.engine.runners.openvino import unrolled_graph
from inference.engine.runners.openvino.decoder_call import DecoderCall
from inference.engine.runners.openvino.paged_group import PagedGroup
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.openvino.unrolled_graph import STEPS
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.search.logits_processors import ban
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState
from tests.inference.engine.runners.openvino.conftest import for_openvino
from tests.inference.engine.runners.openvino.test_paged_runner import (
    close,
    core_of,
    endless,
    run,
    small_capacity,
    used_blocks,
)
from tests.inference.engine.runners.ort.test_runner import prompt_request
from tests.inference.engine.runners.ort.test_runner import request as source_request
from tests.inference.engine.staggered import without_cuts
from tests.inference.engine.toy_bundles import VOCABULARY, language_bundle

RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "banned": {"suppress_tokens": (3, 4), "min_new_tokens": 20},
    "renormalised": {"suppress_tokens": (3, 4, 6), "renormalize_logits": True},
    "biased": {"logit_bias": {5: 2.0}},
    "many banned": {"suppress_tokens": tuple(range(2, 14))},
    "forced": {"forced_eos_token_id": 1},
    "recorded": {"top_log_probs": 3},
    "sampled": {"do_sample": True, "temperature": 0.3, "top_k": 0, "seed": 7},
    "penalised": {"repetition_penalty": 1.2},
    "beams": {"num_beams": 2, "num_return_sequences": 2},
}
company = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 999), st.integers(1, 60), st.booleans()),
    min_size=1,
    max_size=6,
)
KINDS = pytest.mark.parametrize("kind", ["language", "quantised", "attention", "half"])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each call of any decoder."""
    counted: list[int] = []

    def run(self: DecoderCall, *rest: Any, original: Any = DecoderCall.run) -> None:
        counted.append(self.steps)
        original(self, *rest)

    monkeypatch.setattr(DecoderCall, "run", run)
    return counted


def asked(kind: str, seed: int, tokens: int, rules: str) -> EngineRequest:
    has_source = kind in ("attention", "half")
    made = (source_request if has_source else prompt_request)(seed, 1, tokens)
    return replace(made, rules=made.rules.model_copy(update=RULES[rules]), stream=rules != "beams")


def in_single_steps(
    runner: PagedRunner, capacity: Capacity, requests: Sequence[EngineRequest]
) -> list[list[Event]]:
    """What each has alone, one token a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "greedy_steps", 0)
        capacity = replace(capacity, draft_tokens=0)
        return [run(EngineCore(runner, capacity), [each])[0] for each in requests]


def assert_same(found: Sequence[Sequence[Event]], wanted: Sequence[Sequence[Event]]) -> None:
    """Tokens, scores and log-probabilities, bit for bit."""
    assert [*map(without_cuts, found)] == [*map(without_cuts, wanted)]


@KINDS
@given(
    company=company,
    rules=st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=2),
    drafts=st.sampled_from([0, 8]),
)
def test_no_bit_depends_on_the_steps_of_a_call(
    kind: str,
    request: pytest.FixtureRequest,
    company: list[tuple[int, int, int, bool]],
    rules: list[str],
    drafts: int,
) -> None:
    """Sequences join, end by tokens and by caps, and mostly share their rules."""
    runner: PagedRunner = request.getfixturevalue(kind)
    capacity = replace(small_capacity(runner, 200), draft_tokens=drafts)
    requests = [asked(kind, *rest, rules[is_other * -1]) for _, *rest, is_other in company]
    outcomes = run(EngineCore(runner, capacity), requests, [when for when, *_ in company])
    assert_same(outcomes, in_single_steps(runner, capacity, requests))
    assert used_blocks(runner) == 0


@pytest.mark.parametrize("rules", sorted(RULES))
def test_calls_take_several_steps_where_their_rules_allow(
    rules: str, language: PagedRunner, calls: list[int]
) -> None:
    core = EngineCore(language, replace(small_capacity(language, 200), draft_tokens=0))
    requests = [endless(asked("language", seed, 41, rules)) for seed in range(5)]
    outcomes = run(core, requests)
    allowed = rules in ("greedy", "banned", "renormalised", "forced")
    assert (STEPS in calls) == allowed
    if allowed:
        assert core.metrics.row_steps == 5 * 40
    assert_same(outcomes, in_single_steps(language, small_capacity(language, 200), requests))


@KINDS
@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_blocks_have_the_bits_of_single_steps(
    kind: str, rows: int, request: pytest.FixtureRequest
) -> None:
    runner: PagedRunner = request.getfixturevalue(kind)
    ids = [np.arange(3 + 7 * row) % VOCABULARY for row in range(rows)]  # some cross a block's end
    prompts = [Prompt(each) for each in ids]
    if kind in ("attention", "half"):
        prompts = [Prompt(each[-5:], each) for each in ids]
    rule, asked = GreedyRule(), [CandidateRequest(1)] * rows
    groups: list[PagedGroup] = [runner.group(1) for _ in range(2)]
    single, several = groups
    tokens = [group.admit(prompts, asked).token_ids[:, 0] for group in groups]
    for _ in range(3):
        assert several.can_step_greedily(rule)
        found = several.step_greedily(tokens[1], rule)
        for step in range(STEPS):
            wanted = single.step(tokens[0], asked)
            assert np.array_equal(found.token_ids[:, step], wanted.token_ids[:, 0])
            assert np.array_equal(found.log_probs[:, step], wanted.log_probs[:, 0])
            tokens[0] = wanted.token_ids[:, 0]
        tokens[1] = found.token_ids[:, -1]
    for one, other, length in zip(
        single._tables, several._tables, several._sources.lengths, strict=True
    ):
        for tensor in runner._decoder.memory.tensors().values():
            parts = (
                np.concatenate([*tensor[table.blocks]], axis=1)[:, :length]
                for table in (one, other)
            )
            assert np.array_equal(*(each.view(np.uint8) for each in parts))
    for group in groups:
        group.release()


@pytest.mark.parametrize("banned", [0, 1, 4, 7])
@pytest.mark.parametrize("by_edit", [False, True])
def test_banned_tokens_are_not_chosen(banned: int, by_edit: bool, language: PagedRunner) -> None:
    """The best ones of each step are banned, which are most of the probability of some rows."""
    prompts = [Prompt(np.arange(length)) for length in (3, 5, 8, 9, 13)]
    group = language.group(1)
    best = group.admit(prompts, [CandidateRequest(8)] * 5).token_ids
    group.release()
    tokens = frozenset(best[:, :2].ravel().tolist()[:banned])
    rule = GreedyRule(ban(tokens)) if by_edit else GreedyRule(banned=tokens)
    asked = [CandidateRequest(1 + len(rule.banned), rule.edit)] * 5
    groups = [language.group(1), language.group(1)]
    for each in groups:
        each.admit(prompts, asked)
    start = np.arange(5)
    found = groups[0].step_greedily(start, rule)
    for step in range(STEPS):
        wanted = groups[1].step(start, asked)
        is_left = ~np.isin(wanted.token_ids, [*rule.banned])
        first = np.arange(5), is_left.argmax(axis=1)
        start = wanted.token_ids[first]
        assert np.array_equal(found.token_ids[:, step], start)
        assert np.array_equal(found.log_probs[:, step], wanted.log_probs[first])
        assert tokens.isdisjoint(start.tolist())
    for each in groups:
        each.release()


@pytest.mark.parametrize(
    ("rule", "is_followed"),
    [
        (GreedyRule(), True),
        (GreedyRule(banned=frozenset(range(7))), True),
        (GreedyRule(banned=frozenset(range(8))), False),
        (GreedyRule(ban(frozenset(range(4))), frozenset(range(3))), True),
        (GreedyRule(ban(frozenset(range(4))), frozenset(range(4))), False),
        (GreedyRule(Edit(np.array([3]), *np.float32([[1], [1], [0]]))), False),
    ],
)
def test_rules_that_the_choice_in_the_graph_follows(rule: GreedyRule, is_followed: bool) -> None:
    assert unrolled_graph.follows(rule) == is_followed


def test_steps_take_no_memory_from_others(language: PagedRunner, calls: list[int]) -> None:
    requests = [endless(prompt_request(seed, 1, 90)) for seed in range(8)]
    outcomes = {}
    for blocks in (14, 200):
        core = core_of(language, blocks)
        outcomes[blocks] = run(core, requests)
        assert core.metrics.failures == 0
        assert (core.metrics.put_back > 0) == (blocks == 14)
    tokens = [
        [final_result(events).hypotheses[0].token_ids for events in each]
        for each in outcomes.values()
    ]
    assert tokens[0] == tokens[1]
    assert {1, STEPS} <= set(calls)
    assert used_blocks(language) == 0


def test_no_call_takes_several_steps_without_room_for_all(language: PagedRunner) -> None:
    group = language.group(1)
    prompts = [Prompt(np.arange(30) % VOCABULARY)] * 2  # two of a block's places are left
    group.admit(prompts, [CandidateRequest(1)] * 2)
    pool = language.blocks
    assert pool is not None
    limit, pool.limit = pool.limit, pool.used + 1
    assert not group.can_step_greedily(GreedyRule())
    pool.limit = pool.used + 2
    assert group.can_step_greedily(GreedyRule())
    pool.limit = limit
    group.release()


@pytest.mark.parametrize("tokens", range(33, 33 + STEPS))
def test_a_next_turn_finds_all_whole_blocks_of_an_answer(
    tokens: int, language: PagedRunner, calls: list[int]
) -> None:
    first = endless(replace(prompt_request(4, 1, tokens), prompt_ids=(2, 3, 5, 7)))
    cached = []
    for steps in (0, STEPS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(language, "greedy_steps", steps)
            core = core_of(language, blocks=100, prefix_bytes=1 << 20)
            (events,) = run(core, [first])
            answer = final_result(events).hypotheses[0].token_ids
            run(core, [replace(first, prompt_ids=(*first.prompt_ids, *answer, 3, 4))])
            cached.append(core.metrics.prefix_tokens)
            close(core)
    assert cached[0] == cached[1] > 0
    assert STEPS in calls


def answer_of(runner: PagedRunner, seed: int) -> tuple[int, ...]:
    one = endless(prompt_request(seed, 1, 30))
    (events,) = in_single_steps(runner, Capacity(prefix_bytes=0), [one])
    return final_result(events).hypotheses[0].token_ids


@pytest.mark.parametrize("place", range(STEPS))
def test_a_row_that_ends_within_a_call_has_no_further_tokens(
    place: int, language: PagedRunner, calls: list[int]
) -> None:
    seed, ids, ends = next(
        (seed, ids, number)
        for seed in range(20)
        for ids in [answer_of(language, seed)]
        for number in range(9 + place, 30, STEPS)
        if ids[number] not in ids[:number]
    )
    other = endless(prompt_request(7, 1, 60))
    one = endless(prompt_request(seed, 1, 30))
    one = replace(one, rules=one.rules.model_copy(update={"eos_token_ids": (ids[ends],)}))
    core = EngineCore(language, replace(small_capacity(language, 200), draft_tokens=0))
    found = run(core, [one, other])
    assert final_result(found[0]).hypotheses[0].token_ids == ids[: ends + 1]
    assert_same(found, in_single_steps(language, Capacity(prefix_bytes=0), [one, other]))
    assert used_blocks(language) == 0


def test_nothing_waits_for_several_steps(language: PagedRunner, calls: list[int]) -> None:
    """A prompt in prefill, of another width too, and a batch of another width."""
    core = EngineCore(language, replace(small_capacity(language, 200), draft_tokens=0))
    core.add(SequenceState(endless(prompt_request(0, 1, 200)), lambda event: None))
    while STEPS not in calls:
        core.step()
    long = replace(endless(prompt_request(1, 2, 20)), prompt_ids=(2, 3, 5) * 20, stream=False)
    core.add(SequenceState(long, lambda event: None))
    calls.clear()
    while core.waiting or len(core._running._by_width) > 1:
        core.step()
    assert set(calls) == {1}
    while STEPS not in calls:
        core.step()
    close(core)


def test_only_small_graphs_take_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = for_openvino(language_bundle(tmp_path))
    assert PagedRunner(bundle, 2).greedy_steps == STEPS
    monkeypatch.setattr(unrolled_graph, "MAX_BYTES", 100)
    assert PagedRunner(bundle, 2).greedy_steps == 0
