"""Drafts and greedy steps: calls that take a sequence several tokens further, and no other bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Bundle, Dtype, Role
from inference.engine.drafts import MOST_ROWS, Draft, Drafter, trim_drafts
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import Cancelled, EngineRequest, Event
from inference.engine.runners.candidates import GreedyRule, GreedyTokens
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.ort import greedy_graph, sessions
from inference.engine.runners.ort.bound_graph import BoundGreedyStep
from inference.engine.runners.ort.runner import OrtGroup, OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice, OrtSessions
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.generation import Finished, Generation
from inference.process_limits import thread_count
from tests.inference.engine.fake_runner import (
    GREEDY_STEPS,
    FakeGroup,
    FakeRunner,
    finish,
    hashed_logits,
    streamed_ids,
)
from tests.inference.engine.test_openvino_runner import (
    close,
    core_of,
    endless,
    run,
    small_capacity,
    used_blocks,
)
from tests.inference.engine.test_ort_runner import assert_alike, prompt_request
from tests.inference.engine.test_ort_runner import request as source_request
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    language_bundle,
)


def test_a_draft_is_what_followed_the_last_tokens_before() -> None:
    drafter = Drafter([7, 8, 9, 1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert drafter.find(4).token_ids == [4, 5, 6, 1]
    drafter.accept(4)
    assert drafter.find(2).token_ids == [5, 6]


def test_of_two_occurrences_the_longer_decides_then_the_last() -> None:
    assert Drafter([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2]).find(1).token_ids == [3]
    assert Drafter([8, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2]).find(1).token_ids == [4]


def test_a_text_that_repeats_itself_goes_on_repeating() -> None:
    assert Drafter([1, 2, 3, 1, 2]).find(7).token_ids == [3, 1, 2, 3, 1, 2, 3]
    assert Drafter([5, 5, 5]).find(3).token_ids == [5, 5, 5]


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3, 4]])
def test_what_is_new_has_no_draft(text: list[int]) -> None:
    assert not Drafter(text).find(8).token_ids


def test_no_draft_is_longer_than_there_is_room() -> None:
    drafter = Drafter([1, 2, 1, 2])
    assert [len(drafter.find(most).token_ids) for most in (-1, 0, 1, 5)] == [0, 0, 1, 5]


def test_rates_follow_the_tokens_whether_drafts_were_computed_or_not() -> None:
    right, wrong = Drafter([1, 2, 3] * 2), Drafter([1, 2, 3] * 2)
    for turn in range(60):
        right.find(4)
        right.accept(1 + turn % 3)
        wrong.find(4)
        wrong.accept(100 + turn)
        for token in (1, 2, 3):
            wrong.accept(token)
    assert right.find(4).rate > 0.99
    assert wrong.find(4).rate < 0.01


def drafts(count: int, rate: float, tokens: int = 8) -> list[Draft]:
    return [Draft(range(tokens), rate)] * count


def test_drafts_that_are_rarely_right_are_not_computed() -> None:
    assert trim_drafts(drafts(1, 0.05), is_padded=False) == [range(0)]


def test_drafts_that_are_right_are_computed_whole() -> None:
    assert trim_drafts(drafts(1, 0.98), is_padded=False) == [range(8)]


def test_a_larger_batch_requires_a_higher_rate() -> None:
    lengths = [len(trim_drafts(drafts(count, 0.6), is_padded=False)[0]) for count in (1, 4, 8, 16)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 3
    assert lengths[-1] == 0


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("count", [1, 5, 12, MOST_ROWS - 1, MOST_ROWS, 64])
def test_calls_have_no_more_rows_than_the_bound(count: int, is_padded: bool) -> None:
    found = trim_drafts(drafts(count, 1.0), is_padded=is_padded)
    assert count + sum(map(len, found)) <= max(count, MOST_ROWS)


def test_a_row_without_a_draft_counts_where_all_have_equal_numbers() -> None:
    one = [*drafts(1, 0.9), *[Draft((), 0.0)] * 7]
    assert len(trim_drafts(one, is_padded=False)[0]) >= 4
    assert not any(trim_drafts(one, is_padded=True))


RULES = Generation(pad_token_id=0, decoder_start_ids=(0,), eos_token_ids=(1, 7), max_new_tokens=21)
STEPS = greedy_graph.STEPS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call of several steps."""
    seen: list[int] = []
    for group in (OrtGroup, FakeGroup):
        real = group.step_greedily

        def counted(
            self: OrtGroup | FakeGroup,
            token_ids: np.ndarray,
            *rest: object,
            real: Callable[..., GreedyTokens] = real,
        ) -> GreedyTokens:
            seen.append(len(token_ids))
            return real(self, token_ids, *rest)

        monkeypatch.setattr(group, "step_greedily", counted)
    return seen


def requests(bundle: Bundle, rules: Generation = RULES, count: int = 9) -> list[EngineRequest]:
    """Requests of different sources, prompts and caps."""
    random = np.random.default_rng(5)
    inputs = {tensor.name for graph in bundle.manifest.graphs.values() for tensor in graph.inputs}
    found = []
    for index in range(count):
        capped = rules.model_copy(update={"max_new_tokens": rules.max_new_tokens - index})
        source = random.integers(0, VOCABULARY, 1 + index % 4)
        request = EngineRequest(capped)
        if "pixels" in inputs:
            request = replace(request, pixels=random.integers(0, 256, (2, 2, 3), np.uint8))
        elif "admit" in bundle.manifest.graphs:
            request = replace(request, source_ids=source)
        else:
            request = replace(request, prompt_ids=tuple(source.tolist()))
        found.append(request)
    return found


def results(runner: OrtRunner, asked: list[EngineRequest], rows: int = 16) -> list[Finished]:
    return decode(runner, asked, Capacity(rows=rows))


def assert_equal(found: list[Finished], expected: list[Finished]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.hypotheses[0].token_ids == other.hypotheses[0].token_ids
        assert one.hypotheses[0].finish_reason == other.hypotheses[0].finish_reason
        assert one.hypotheses[0].score == pytest.approx(other.hypotheses[0].score, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eos_token_ids": ()},
        {"bad_words_ids": ((3,), (9,))},
        {"bad_words_ids": ((3,), (9,)), "renormalize_logits": True},
        {"min_new_tokens": 6},
        {"forced_eos_token_id": 1, "forced_bos_token_id": 5},
    ],
    ids=str,
)
def test_results_equal_those_of_single_steps(
    bundle: Bundle, changes: dict[str, object], calls: list[int]
) -> None:
    """Rows end within calls and near their caps; with few rows, waiting ones take their places."""
    runner, single = (OrtRunner(bundle, threads=1, device=CpuDevice()) for _ in range(2))
    single.capabilities = replace(single.capabilities, greedy_steps=0)
    asked = requests(bundle, RULES.model_copy(update=changes))
    expected = results(single, asked)
    assert not calls
    assert_equal(results(runner, asked), expected)
    assert calls
    assert_equal(results(runner, asked, rows=4), expected)


class AllocatingDevice(CpuDevice):
    """Records the elements of what is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: list[int] = []

    def allocate(self, elements: int, dtype: Dtype) -> np.ndarray:
        self.allocated.append(elements)
        return super().allocate(elements, dtype)


def test_steps_of_all_numbers_of_sequences_read_one_copy_of_a_rule(tmp_path: Path) -> None:
    device = AllocatingDevice()
    group = OrtRunner(attention_bundle(tmp_path), threads=1, device=device).group(1)
    group.admit_deferred([Prompt(np.array([0]), np.array([1, 2 + row])) for row in range(4)])
    rule, found = GreedyRule(banned=frozenset({3})), []
    for rows in (4, 3, 2, 1):
        taken = group.step_greedily(np.zeros(rows, np.int64), rule, STEPS, frozenset())
        found += taken.token_ids.ravel().tolist()
        group.retire(rows - 1)
    assert device.allocated.count(VOCABULARY) == 2
    assert 3 not in found


@pytest.mark.parametrize("name", ["forced_eos_token_id", "min_new_tokens"])
def test_constraint_behind_the_steps_applies_to_the_next_token(
    bundle: Bundle, name: str, calls: list[int]
) -> None:
    """An end that is forced, or first allowed, at every distance from the end of a call."""
    runner, single = (OrtRunner(bundle, threads=1) for _ in range(2))
    single.capabilities = replace(single.capabilities, greedy_steps=0)
    for count in range(2 * STEPS, 3 * STEPS):
        # Without other end tokens the forced one is seen; with all, the first allowed is the last.
        ends: dict[str, object] = (
            {name: 1, "eos_token_ids": (1,), "max_new_tokens": count, "bad_words_ids": ((1,),)}
            if name == "forced_eos_token_id"
            else {name: count, "eos_token_ids": tuple(range(2, VOCABULARY))}
        )
        (asked,) = requests(bundle, RULES.model_copy(update=ends), count=1)
        assert_equal(results(runner, [asked]), results(single, [asked]))
    assert calls


def stand_still(step: BoundGreedyStep, token_ids: np.ndarray) -> None:
    step._device.copy(token_ids, step._controls[Role.TOKENS])


def leave_states(step: BoundGreedyStep) -> None:
    step._device.run_bound(step._session, step._binding)


@pytest.mark.parametrize(
    "fault",
    [
        (BoundGreedyStep, "_advance_controls", stand_still),
        (BoundGreedyStep, "_run", leave_states),
        (GreedyRule, "bias", GreedyRule.bans),
    ],
    ids=["lengths stand still", "states of the first step", "bans changed for bias"],
)
def test_faults_of_several_steps_are_seen(
    bundle: Bundle, fault: tuple[type, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted fault changes a result, where it has an effect."""
    kinds = {state.growth for state in bundle.manifest.states}
    is_recurrent = "replace" in kinds
    if is_recurrent != (fault[1] == "_run") and fault[1] != "bias":
        pytest.skip("this graph has no such part")
    rules = RULES.model_copy(
        update={"bad_words_ids": ((3,), (9,)), "renormalize_logits": True, "eos_token_ids": ()}
    )
    asked = requests(bundle, rules)
    sound = OrtRunner(bundle, threads=1)
    sound.capabilities = replace(sound.capabilities, greedy_steps=0)
    expected = results(sound, asked)
    monkeypatch.setattr(*fault)
    found = results(OrtRunner(bundle, threads=1), asked)
    with pytest.raises(AssertionError):
        assert_equal(found, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_log_probs": 0},
        {"repetition_penalty": 1.2},
        {"no_repeat_ngram_size": 2},
        {"do_sample": True},
        {"num_beams": 2},
    ],
    ids=str,
)
def test_other_rules_take_single_steps(changes: dict[str, object], calls: list[int]) -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY), VOCABULARY, greedy_steps=GREEDY_STEPS)
    rules = RULES.model_copy(update=changes)
    decode(runner, [EngineRequest(rules), EngineRequest(RULES.model_copy())], Capacity(rows=4))
    if rules.num_beams == 1:
        runner = FakeRunner(hashed_logits(VOCABULARY), VOCABULARY, greedy_steps=GREEDY_STEPS)
        calls.clear()
        decode(runner, [EngineRequest(rules)], Capacity(rows=4))
        assert not calls


def test_waiting_sequences_are_admitted_after_single_steps(calls: list[int]) -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY, -99), VOCABULARY, greedy_steps=GREEDY_STEPS)
    decoder = EngineCore(runner, Capacity(rows=1))
    events = submitted(decoder, 2)
    decoder.step()
    decoder.step()
    assert decoder.waiting == 1
    assert not calls
    finish(decoder)
    assert calls
    assert all(isinstance(one[-1], Finished) for one in events)


def test_streams_get_all_tokens_in_order(calls: list[int]) -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY), VOCABULARY, greedy_steps=GREEDY_STEPS)
    decoder = EngineCore(runner, Capacity(rows=8))
    streams = submitted(decoder, 5)
    finish(decoder)
    assert calls
    for events in streams:
        *chunks, last = events
        assert isinstance(last, Finished)
        assert tuple(streamed_ids(chunks)) == last.hypotheses[0].token_ids
        assert all(len(one.token_ids) <= GREEDY_STEPS for one in chunks)


def test_cancelled_sequence_ends_after_the_call_that_runs() -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY, -99), VOCABULARY, greedy_steps=GREEDY_STEPS)
    decoder = EngineCore(runner, Capacity(rows=8))
    events: list[Event] = []
    sequence = SequenceState(EngineRequest(RULES, stream=True), events.append)
    decoder.add(sequence)
    decoder.step()
    decoder.step()
    sequence.cancel()
    seen = len(events)
    decoder.step()
    assert isinstance(events[seen], Cancelled)
    assert decoder.is_idle


def test_every_row_step_is_counted(calls: list[int]) -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY), VOCABULARY, greedy_steps=GREEDY_STEPS)
    decoder = EngineCore(runner, Capacity(rows=8))
    rules = RULES.model_copy(update={"eos_token_ids": (), "max_new_tokens": 21})
    for _ in range(3):
        decoder.add(SequenceState(EngineRequest(rules), lambda _: None))
    finish(decoder)
    assert decoder.metrics.row_steps == 3 * 21
    assert calls == [3] * 6


def test_only_small_graphs_with_their_weights_take_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = language_bundle(tmp_path)
    assert OrtRunner(bundle, threads=1, device=CpuDevice()).capabilities.greedy_steps == STEPS
    path = bundle.path(bundle.manifest.graphs["step"].file)
    beside = path.with_name("beside.onnx")
    onnx.save(onnx.load(path), beside, save_as_external_data=True, size_threshold=0)
    assert greedy_graph.small_step(bundle.manifest, beside) is None
    monkeypatch.setattr(greedy_graph, "_MAX_BYTES", 100)
    assert OrtRunner(bundle, threads=1, device=CpuDevice()).capabilities.greedy_steps == 0


def test_small_graphs_take_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = language_bundle(tmp_path)

    def threads() -> int:
        session = OrtSessions(bundle, CpuDevice(), threads=2, spare_bytes=0).step
        return int(session.get_session_options().intra_op_num_threads)

    assert threads() == 1
    monkeypatch.setattr(sessions, "_SERIAL_BYTES", 100)
    assert threads() == thread_count(2)


def submitted(decoder: EngineCore, count: int) -> list[list[Event]]:
    """Events of streams of different prompts."""
    found: list[list[Event]] = []
    for index in range(count):
        found.append([])
        request = EngineRequest(RULES, source_ids=np.array([index]), stream=True)
        decoder.add(SequenceState(request, found[-1].append))
    return found


DRAFT_RULES: dict[str, dict[str, Any]] = {
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
        st.sampled_from(sorted(DRAFT_RULES)),
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
        made, rules=made.rules.model_copy(update=DRAFT_RULES[rules]), stream=rules != "beams"
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
        source_request(0, 1, 40), source_ids=np.array([7, 8, VOCABULARY, 9, 2]), prompt_ids=(7, 8)
    )
    sequence = SequenceState(made, lambda event: None)
    assert list(sequence.draft(2, VOCABULARY).token_ids) == [9, 2]


def test_drafts_end_before_the_cap() -> None:
    made = replace(endless_prompts(1)[0], prompt_ids=(2, 3) * 9)
    rules = made.rules.model_copy(update={"max_new_tokens": 3})
    sequence = SequenceState(replace(made, rules=rules), lambda event: None)
    assert len(sequence.draft(8, VOCABULARY).token_ids) == 2
