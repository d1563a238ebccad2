"""The runner over OpenVINO computes what the other one computes, however blocks move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as ops

from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, Event
from inference.engine.runners.candidates import CandidateRequest, plain_request
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder, DecoderCall
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.runners.openvino.token_choice import COUNT, add_token_choice
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.search.logits_processors import ban
from inference.engine.sequence import SequenceState
from inference.engine.state.group_state import BufferShape
from inference.errors import BundleError, InternalError, TooLong
from inference.openvino_core import openvino_core
from tests.inference.engine.fake_runner import (
    FakeRunner,
    Talk,
    beam_rules,
    company,
    converse,
    finish,
    run_staggered,
    streamed_ids,
    talk,
)
from tests.inference.engine.test_ort_runner import (
    assert_alike,
    assert_follows,
    prompt_request,
    staggered,
)
from tests.inference.engine.test_ort_runner import request as source_request
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_logits,
    for_openvino,
    language_bundle,
    language_logits,
    recurrent_bundle,
)


def used_blocks(runner: PagedRunner) -> int:
    return runner.blocks.used


def small_capacity(runner: PagedRunner, blocks: int, prefix_bytes: int = 0) -> Capacity:
    """Room for so many blocks, which sequences of the tests exceed together."""
    return Capacity(
        rows=32,
        prefill_tokens=24,
        prefill_tokens_beside=12,
        chunk_tokens=12,
        state_bytes=blocks * runner.blocks.block_bytes + 30_000,
        prefix_bytes=prefix_bytes,
        prefix_min_tokens=8,
    )


def core_of(runner: PagedRunner, blocks: int, prefix_bytes: int = 0) -> EngineCore:
    return EngineCore(runner, small_capacity(runner, blocks, prefix_bytes))


def close(core: EngineCore) -> None:
    """Drops everything, cached prefixes too, so that the runner can be used again."""
    core.fail(RuntimeError("the end of this test"))
    assert used_blocks(core._runner) == 0


def run(
    core: EngineCore, asked: Sequence[EngineRequest], turns: Sequence[int] = ()
) -> list[list[Event]]:
    """All events of each request; each is queued at its turn, or all at once."""
    return run_staggered(core, asked, turns or [0] * len(asked))


@given(company=company)
def test_language_follows_its_equations(
    paged_language: PagedRunner, company: list[tuple[int, int, int, int]]
) -> None:
    arrivals = [(when, prompt_request(*rest)) for when, *rest in company]
    core = core_of(paged_language, 100, 1 << 14)
    asked = [one for _, one in arrivals]
    outcomes = run(core, asked, [when for when, _ in arrivals])
    assert_follows([final_result(events) for events in outcomes], asked, language_logits)
    close(core)


@given(company=company)
def test_attention_follows_its_equations(
    paged_attention: PagedRunner, company: list[tuple[int, int, int, int]]
) -> None:
    arrivals = [(when, source_request(*rest)) for when, *rest in company]
    found = staggered(paged_attention, arrivals, small_capacity(paged_attention, 100))
    assert_follows(found, [one for _, one in arrivals], attention_logits)
    assert used_blocks(paged_attention) == 0


def endless(one: EngineRequest, **update: object) -> EngineRequest:
    """The request without an end token."""
    rules = one.rules.model_copy(update={"eos_token_ids": (), **update})
    return replace(one, rules=rules, stream=rules.rows == 1)


@pytest.mark.parametrize(
    "update",
    [{}, {"do_sample": True, "seed": 5, "top_k": 9}, {"repetition_penalty": 1.3}],
    ids=["greedy", "sampled", "penalised"],
)
def test_sequences_put_back_go_on_at_the_next_token(
    paged_language: PagedRunner, update: dict[str, object]
) -> None:
    asked = [endless(prompt_request(seed, 1, 90), **update) for seed in range(8)]
    wanted = [decode(paged_language, [one], Capacity(prefix_bytes=0))[0] for one in asked]
    core = core_of(paged_language, blocks=14)
    outcomes = run(core, asked)
    assert core.metrics.put_back >= 3
    assert core.metrics.failures == 0
    assert_alike([final_result(events) for events in outcomes], wanted)
    for events in outcomes:  # what was streamed before is not sent again
        final = final_result(events)
        assert tuple(streamed_ids(events)) == final.hypotheses[0].token_ids
    assert used_blocks(paged_language) == 0


@pytest.mark.parametrize("kind", ["language", "attention"])
def test_lost_sequences_go_on_at_the_next_token(kind: str, request: pytest.FixtureRequest) -> None:
    runner = request.getfixturevalue(f"paged_{kind}")
    ask = source_request if kind == "attention" else prompt_request
    asked = [endless(ask(seed, 1, 60), do_sample=True, num_beams=1, seed=5) for seed in range(4)]
    capacity, cuts = Capacity(prefix_bytes=0), (1, 16, 33, 59)
    wanted = [decode(runner, [one], capacity)[0].best.token_ids for one in asked]
    lost = [
        replace(one, rules=one.rules.model_copy(update={"generated_ids": ids[:cut]}))
        for one, ids, cut in zip(asked, wanted, cuts, strict=True)
    ]
    found = [one.best.token_ids for one in decode(runner, lost, capacity)]
    assert found == [ids[cut:] for ids, cut in zip(wanted, cuts, strict=True)]
    assert used_blocks(runner) == 0


@pytest.mark.parametrize(
    "update",
    [{"num_beams": 3}, {"do_sample": True, "num_beams": 1, "num_return_sequences": 3, "seed": 2}],
    ids=["beams", "samples"],
)
def test_several_rows_put_back_begin_anew(
    paged_attention: PagedRunner, update: dict[str, object]
) -> None:
    asked = [endless(source_request(seed, 1, 70), **update) for seed in range(6)]
    wanted = [decode(paged_attention, [one])[0] for one in asked]
    core = core_of(paged_attention, blocks=16)
    outcomes = run(core, asked)
    assert core.metrics.put_back >= 2
    assert_alike([final_result(events) for events in outcomes], wanted)
    assert used_blocks(paged_attention) == 0


def test_no_sequence_is_put_back_twice(
    paged_language: PagedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = Counter[int]()

    def counted(sequence: SequenceState, original: Any = SequenceState.put_back) -> None:
        put_back[id(sequence.request)] += 1
        original(sequence)

    monkeypatch.setattr(SequenceState, "put_back", counted)
    asked = [endless(prompt_request(9, 1, 150)) for _ in range(8)]
    asked = [replace(one, prompt_ids=(number, 1)) for number, one in enumerate(asked)]
    core = core_of(paged_language, blocks=3)  # eight begin with one, and end with five each
    run(core, asked)
    assert core.metrics.put_back == put_back.total() >= 5
    assert set(put_back.values()) == {1}


@given(company=company, blocks=st.integers(12, 20))
def test_sequences_without_room_for_all_follow_their_equations(
    paged_language: PagedRunner, company: list[tuple[int, int, int, int]], blocks: int
) -> None:
    core = core_of(paged_language, blocks)
    asked = [prompt_request(seed, beams, tokens) for _, seed, beams, tokens in company]
    outcomes = run(core, asked)
    assert core.metrics.failures == 0
    assert_follows([final_result(events) for events in outcomes], asked, language_logits)
    assert used_blocks(paged_language) == 0


@pytest.fixture
def scarce(tmp_path: Path) -> PagedRunner:
    """A runner of its own: a limit of blocks stays behind."""
    return PagedRunner(for_openvino(attention_bundle(tmp_path)), 2)


def test_blocks_do_not_grow_beside_buffers_of_sequences_that_ended(scarce: PagedRunner) -> None:
    source = np.arange(40) % VOCABULARY
    short, long = (
        [replace(endless(source_request(seed, 1, tokens)), source_ids=source) for seed in range(32)]
        for tokens in (4, 150)
    )
    block_bytes = scarce.blocks.block_bytes
    room = scarce.footprint.bytes(1, BufferShape.holding(32, 0, 40)) + 8 * block_bytes
    capacity = replace(small_capacity(scarce, 0), state_bytes=room, prefill_tokens=5000)
    core, events = EngineCore(scarce, capacity), [[] for _ in (*short, *long[:20])]
    for turn, asked in [(0, short), (1, long[:20])]:
        for one, each in zip(asked, events[turn * len(short) :], strict=False):
            core.add(SequenceState(one, each.append))
        while not core.is_idle:
            core.step()
            assert core.metrics.state_bytes + core._scheduler.spare_bytes <= room
    assert core.metrics.failures == 0
    assert core.metrics.put_back
    found = [final_result(each) for each in events]
    assert_follows(found, [*short, *long[:20]], attention_logits)
    assert used_blocks(scarce) == 0


def test_a_batch_that_fits_is_admitted_though_a_larger_one_does_not(scarce: PagedRunner) -> None:
    source = np.arange(40) % VOCABULARY
    asked = [replace(endless(source_request(seed, 1, 4)), source_ids=source) for seed in range(3)]
    two = scarce.footprint.bytes(1, BufferShape.holding(2, 0, 40))
    room = two + 2 * scarce.blocks.block_bytes  # not even a block beside three sources
    capacity = replace(small_capacity(scarce, 0), state_bytes=room, prefill_tokens=5000)
    core = EngineCore(scarce, capacity)
    outcomes = run(core, asked)
    assert core.metrics.failures == 0
    assert_follows([final_result(events) for events in outcomes], asked, attention_logits)


def test_prompts_of_a_batch_have_room_for_the_padding_of_the_longest(scarce: PagedRunner) -> None:
    block = scarce.blocks.block_tokens
    made = replace(endless(source_request(0, 1, 4)), source_ids=np.arange(40) % VOCABULARY)
    prompts = [(2, 3) * block, (3, 2) * block]
    asked = [
        replace(made, prompt_ids=prompt[:length])
        for prompt, length in zip(prompts, (block - 2, block), strict=True)  # behind a first token
    ]
    room = scarce.footprint.bytes(1, BufferShape.holding(2, 0, 40))
    room += 3 * scarce.blocks.block_bytes
    capacity = replace(small_capacity(scarce, 0), state_bytes=room, prefill_tokens=5000)
    core = EngineCore(scarce, replace(capacity, chunk_tokens=500, prefill_tokens_beside=500))
    outcomes = run(core, asked)
    assert core.metrics.failures == 0
    assert_follows([final_result(events) for events in outcomes], asked, attention_logits)


def test_what_could_never_run_is_refused(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=3)
    with pytest.raises(TooLong, match="positions in 3 rows need"):
        core.check_fits(endless(prompt_request(1, 3, 90)))


def test_beams_share_the_blocks_of_their_prompt(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=100)
    ids = tuple(np.random.default_rng(0).integers(0, VOCABULARY, 96).tolist())
    asked = endless(prompt_request(0, 3, 20))
    core.add(SequenceState(replace(asked, prompt_ids=ids, stream=False), lambda event: None))
    for _ in range(12):
        core.step()
    assert used_blocks(paged_language) <= 3 + 3  # those of the prompt, and one for each beam
    close(core)


def test_a_next_turn_prefills_only_what_is_new(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=100, prefix_bytes=1 << 20)
    first = endless(prompt_request(4, 1, 80))
    (events,) = run(core, [first])
    answer = final_result(events).hypotheses[0].token_ids
    before = core.metrics.prefill_tokens
    turn = replace(first, prompt_ids=(*first.prompt_ids, *answer, 3, 4))
    (events,) = run(core, [turn])
    known = len(first.decoder_ids) + len(answer) - 1  # the last token was no input yet
    assert core.metrics.prefill_tokens - before == len(turn.decoder_ids) - known
    close(core)
    assert_alike([final_result(events)], decode(paged_language, [turn], Capacity(prefix_bytes=0)))


@given(talk=talk, blocks=st.sampled_from([20, 100]), cached=st.integers(0, 20))
def test_turns_of_conversations_follow_the_equations(
    paged_language: PagedRunner, talk: Talk, blocks: int, cached: int
) -> None:
    core = core_of(paged_language, blocks, cached * paged_language.blocks.block_bytes)
    asked, found = converse(core, talk)
    assert_follows(found, asked, language_logits)
    close(core)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_block_that_is_used_in_part_is_copied_once_and_never_written(
    paged_language: PagedRunner, beams: int
) -> None:
    """Two that go on behind the same tokens within a block, at once."""
    core = core_of(paged_language, blocks=100, prefix_bytes=1 << 20)
    first = endless(prompt_request(5, 1, 12))
    (events,) = run(core, [first])
    answer = final_result(events).hypotheses[0].token_ids
    said = (*first.prompt_ids, *answer[:-3])  # the end of the answer is another's
    memory = paged_language._decoder.memory
    before = {name: array.copy() for name, array in memory.tensors().items()}
    kept = [
        block for _, part in core._scheduler._prefixes._blocks.values() for block in part.blocks
    ]
    made = beam_rules(beams, 30).model_copy(update={"eos_token_ids": ()})
    asked = [EngineRequest(made, prompt_ids=(*said, token)) for token in (3, 4)]
    tokens = core.metrics.prefix_tokens
    found = [final_result(events) for events in run(core, asked)]
    assert core.metrics.prefix_tokens - tokens == 2 * (1 + len(said))
    assert (1 + len(said)) % 32
    for name, array in memory.tensors().items():
        assert np.array_equal(array[kept], before[name][kept])
    close(core)
    assert_alike(found, decode(paged_language, asked, Capacity(prefix_bytes=0)))


def test_cached_prefixes_give_way_to_sequences(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=8, prefix_bytes=1 << 20)
    asked = [endless(prompt_request(seed, 1, 60)) for seed in range(6)]
    outcomes = [run(core, [one])[0] for one in asked]
    close(core)
    wanted = [decode(paged_language, [one], Capacity(prefix_bytes=0))[0] for one in asked]
    assert_alike([final_result(events) for events in outcomes], wanted)
    assert core.metrics.put_back == 0


def test_ended_sequences_hold_no_blocks(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=100)
    cancelled = SequenceState(endless(prompt_request(2, 1, 60)), lambda event: None)
    long = EngineRequest(cancelled.request.rules, prompt_ids=(2,) * 80)
    prefilling = SequenceState(long, lambda event: None)
    core.add(cancelled)
    core.step()
    core.add(prefilling)
    core.step()
    assert used_blocks(paged_language) > 0
    cancelled.cancel()
    prefilling.cancel()
    core.step()
    assert used_blocks(paged_language) == 0


def test_a_failed_call_leaves_no_blocks(
    paged_language: PagedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: DecoderCall, *arguments: object) -> None:
        raise RuntimeError("no such memory")

    core = core_of(paged_language, blocks=100)
    events: list[Event] = []
    core.add(SequenceState(endless(prompt_request(2, 2, 60)), events.append))
    core.step()
    monkeypatch.setattr(DecoderCall, "run", broken)
    core.step()
    with pytest.raises(InternalError, match="the log of the model has the cause"):
        final_result(events)
    assert used_blocks(paged_language) == 0


@pytest.mark.parametrize("kind", ["language", "attention", "quantised", "half"])
def test_bits_do_not_depend_on_neighbours(kind: str, request: pytest.FixtureRequest) -> None:
    runner: PagedRunner = request.getfixturevalue(f"paged_{kind}")
    ids = [np.arange(length) % VOCABULARY for length in (3, 40, 17, 64)]
    prompts = [Prompt(each) for each in ids]
    if kind in ("attention", "half"):
        prompts = [Prompt(np.array([1]), each) for each in ids]
    together = runner.group(1)
    plain = [plain_request(8)] * len(prompts)
    batches = [together.admit(prompts, plain)]
    batches += [together.step(np.array([1, 5, 2, 9]) + step, plain) for step in range(6)]
    for row, prompt in enumerate(prompts):
        alone = runner.group(1)
        found = [alone.admit([prompt], plain[:1])]
        tokens = (np.array([1, 5, 2, 9]) + step for step in range(6))
        found += [alone.step(each[row : row + 1], plain[:1]) for each in tokens]
        for one, batch in zip(found, batches, strict=True):
            assert one.token_ids[0].tolist() == batch.token_ids[row].tolist()
            assert np.array_equal(one.log_probs[0], batch.log_probs[row])
        alone.release()
    together.release()


@pytest.mark.parametrize(
    "other",
    [
        plain_request(20),
        CandidateRequest(3, temperature=0.7),
        CandidateRequest(1, given=(3,)),
        CandidateRequest(1, edit=ban(frozenset({3, 5}))),
    ],
)
def test_bits_do_not_depend_on_what_neighbours_need(
    paged_language: PagedRunner, other: CandidateRequest
) -> None:
    prompts = [Prompt(np.arange(length)) for length in range(2, 12)]
    found = []
    for request in (plain_request(4), other):
        group = paged_language.group(1)
        asked = [plain_request(4), request] * 5
        found.append([group.admit(prompts, asked), group.step(np.arange(10), asked)])
        group.release()
    for alone, beside in zip(*found, strict=True):
        count = min(4, beside.token_ids.shape[1])
        assert np.array_equal(alone.token_ids[::2, :count], beside.token_ids[::2, :count])
        assert np.array_equal(alone.log_probs[::2, :count], beside.log_probs[::2, :count])


@pytest.mark.parametrize("kind", ["language", "quantised"])
def test_a_token_changes_nothing_that_was_cached_before_it(
    kind: str, request: pytest.FixtureRequest
) -> None:
    runner: PagedRunner = request.getfixturevalue(f"paged_{kind}")
    group = runner.group(1)
    group.admit([Prompt(np.arange(9))], [plain_request(1)])
    memory = runner._decoder.memory.tensors()
    # keys are (blocks, G, positions, K), scales of 8 bits included
    before = {name: tensor[:, :, :9].copy() for name, tensor in memory.items()}
    for token in range(5):
        group.step(np.array([token]), [plain_request(1)])
    for name, tensor in memory.items():
        assert np.array_equal(tensor[:, :, :9], before[name]), name
    group.release()


@pytest.mark.parametrize("wide", [1, 20])
def test_choice_in_the_graph_equals_a_ranking_of_the_logits(
    paged_language: PagedRunner, wide: int
) -> None:
    group = paged_language.group(1)
    prompts = [Prompt(np.arange(5)), Prompt(np.arange(9))]
    asked = [plain_request(wide), CandidateRequest(3, temperature=0.7)]
    found = group.admit(prompts, asked)
    other = paged_language.group(1)
    chosen = other.admit(prompts, [plain_request(3)] * 2)
    assert found.token_ids[:, :1].tolist() == chosen.token_ids[:, :1].tolist()
    np.testing.assert_allclose(found.log_probs[:, :1], chosen.log_probs[:, :1], rtol=1e-5)
    group.release()
    other.release()


@pytest.mark.parametrize(
    "banned", [(), (5,), (5, 11, 2), (0, 1, 2, 3, 4, 5, 6)], ids=["none", "one", "three", "seven"]
)
@pytest.mark.parametrize("beside", [plain_request(4), plain_request(20)], ids=["alike", "ranked"])
def test_bans_leave_what_a_ranking_without_them_has(
    paged_language: PagedRunner, banned: tuple[int, ...], beside: CandidateRequest
) -> None:
    prompts = [Prompt(np.arange(length)) for length in (3, 5, 8, 9, 13)]
    asked = CandidateRequest(1, edit=ban(frozenset(banned)))
    group, other = paged_language.group(1), paged_language.group(1)
    found = group.admit(prompts, [asked, beside, asked, beside, asked])
    everything = other.admit(prompts, [plain_request(VOCABULARY)] * 5)
    for row in (0, 2, 4):
        ids, log_probs = everything.token_ids[row].tolist(), everything.log_probs[row]
        left = [place for place, token in enumerate(ids) if token not in banned]
        total = np.logaddexp.reduce(log_probs[left])
        assert found.token_ids[row, 0] == ids[left[0]]
        assert found.log_probs[row, 0] == pytest.approx(log_probs[left[0]] - total, abs=2e-6)
        more = found.more(row, len(left))
        assert more.token_ids[0].tolist() == [ids[place] for place in left]
        np.testing.assert_allclose(more.log_probs[0], log_probs[left] - total, atol=2e-6)
        alone = paged_language.group(1)
        single = alone.admit([prompts[row]], [asked])
        assert single.token_ids[0, 0] == found.token_ids[row, 0]
        assert single.log_probs[0, 0] == found.log_probs[row, 0]
        alone.release()
    group.release()
    other.release()


@pytest.mark.parametrize(("places", "is_ranked"), [([1], False), ([0, 1], True)])
def test_a_ban_of_most_of_the_probability_ranks_the_rest(
    places: list[int], is_ranked: bool, paged_language: PagedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[int] = []

    def rank(
        self: CompiledDecoder, logits: Any, *rest: Any, original: Any = CompiledDecoder.rank
    ) -> Any:
        ranked.append(len(logits))
        return original(self, logits, *rest)

    monkeypatch.setattr(CompiledDecoder, "rank", rank)
    prompt, group = Prompt(np.arange(9)), paged_language.group(1)
    best = group.admit([prompt], [plain_request(3)])
    mass = np.exp(best.log_probs[0, places].astype(np.float64)).sum()
    assert (mass > 0.5) == is_ranked
    asked = CandidateRequest(1, edit=ban(frozenset(best.token_ids[0, places].tolist())))
    found = group.admit([prompt], [asked])
    assert bool(ranked) == is_ranked
    first = min({0, 1, 2}.difference(places))
    assert found.token_ids[0, 0] == best.token_ids[0, first]
    wanted = best.log_probs[0, first] - np.log1p(-mass)
    assert found.log_probs[0, 0] == pytest.approx(wanted, abs=1e-5)
    group.release()


def test_recurrent_decoders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="recurrent: export it with --runtime onnxruntime"):
        PagedRunner(for_openvino(recurrent_bundle(tmp_path)), 2)


def test_damaged_graph_is_a_bundle_error(tmp_path: Path) -> None:
    bundle = for_openvino(language_bundle(tmp_path))
    bundle.path("step.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"OpenVINO cannot read step\.onnx"):
        PagedRunner(bundle, 2)


def test_memory_of_an_idle_engine_is_given_back(paged_language: PagedRunner) -> None:
    decode(paged_language, [prompt_request(3, 1, 30)], Capacity(prefix_bytes=0))
    assert paged_language.spare_bytes > 0
    paged_language.trim()
    assert paged_language.spare_bytes == 0
    decode(paged_language, [prompt_request(3, 1, 30)], Capacity(prefix_bytes=0))


def given(one: EngineRequest, count: int) -> EngineRequest:
    """The request with so many given tokens, whose log-probabilities are wanted."""
    ids = np.random.default_rng(count).integers(0, VOCABULARY, count).tolist()
    update = {"given_ids": tuple(ids), "max_new_tokens": count, "top_log_probs": 2}
    return replace(one, rules=one.rules.model_copy(update=update))


@pytest.mark.parametrize("kind", ["language", "attention"])
@pytest.mark.parametrize("count", [1, 2, 12, 13, 37])
def test_given_tokens_are_scored_without_a_step(
    kind: str, count: int, request: pytest.FixtureRequest
) -> None:
    runner: PagedRunner = request.getfixturevalue(f"paged_{kind}")
    made = prompt_request if kind == "language" else source_request
    logits = language_logits if kind == "language" else attention_logits
    asked = [given(made(seed, 1, 40), count) for seed in range(4)]
    company = endless(made(9, 1, 30))
    core = core_of(runner, blocks=100)
    *found, _ = (final_result(events) for events in run(core, [*asked, company], [3] * 4 + [0]))
    assert core.metrics.row_steps == 29  # those of the company
    wanted = decode(FakeRunner(logits, VOCABULARY, takes_chunks=False), asked)
    for one, other in zip(found, wanted, strict=True):
        (mine,), (theirs,) = one.hypotheses, other.hypotheses
        assert mine.token_ids == theirs.token_ids
        assert mine.log_probs == pytest.approx(theirs.log_probs, rel=1e-3, abs=1e-4)
        assert [[token for token, _ in top] for top in mine.top] == [
            [token for token, _ in top] for top in theirs.top
        ]
    assert used_blocks(runner) == 0


def test_scores_use_cached_prompts_and_no_cached_answers(paged_language: PagedRunner) -> None:
    core = core_of(paged_language, blocks=100, prefix_bytes=1 << 20)
    first = endless(prompt_request(5, 1, 60))
    (events,) = run(core, [first])
    answer = final_result(events).hypotheses[0].token_ids
    update = {"given_ids": answer, "max_new_tokens": len(answer), "top_log_probs": 1}
    scored = replace(first, rules=first.rules.model_copy(update=update), stream=False)
    hits = core.metrics.prefix_hits
    (events,) = run(core, [scored])
    close(core)
    assert core.metrics.prefix_hits == hits + 1
    (found,) = final_result(events).hypotheses
    assert [top[0][0] for top in found.top] == list(answer)  # greedy: each was the best


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each call of any decoder, threads' padding left out."""
    counted: list[int] = []

    def run(self: DecoderCall, tokens: Any, *rest: Any, original: Any = DecoderCall.run) -> None:
        counted.append(len(tokens))
        original(self, tokens, *rest)

    monkeypatch.setattr(DecoderCall, "run", run)
    return counted


def test_running_sequences_take_a_prompts_chunks_along(
    paged_language: PagedRunner, calls: list[int]
) -> None:
    core = EngineCore(paged_language, replace(small_capacity(paged_language, 100), draft_tokens=0))
    company = [endless(prompt_request(seed, 1, 40)) for seed in (0, 3, 6)]
    long = EngineRequest(company[0].rules, prompt_ids=(2, 3, 5) * 26)  # 79 tokens
    events = run(core, [*company, long], [0, 0, 0, 5])
    assert (calls.count(3 + 12), calls.count(3 + 7)) == (6, 1)  # the last one is scored
    assert core.metrics.prefill_tokens == 79 + sum(len(one.decoder_ids) for one in company)
    assert_follows([final_result(each) for each in events], [*company, long], language_logits)


@pytest.mark.parametrize("length", [24, 25, 36, 79])  # the last chunk has 1 to 12 tokens
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("draft_tokens", [0, 8])
def test_a_prompt_whose_end_was_taken_along_has_the_bits_of_one_alone(
    paged_language: PagedRunner, length: int, width: int, draft_tokens: int
) -> None:
    capacity = replace(small_capacity(paged_language, 100), draft_tokens=draft_tokens)
    company = [endless(prompt_request(seed, width, 40)) for seed in (0, 3)]
    rules = company[0].rules.model_copy(update={"max_new_tokens": 9})
    long = EngineRequest(rules, prompt_ids=tuple(2 + place % 7 for place in range(length)))
    [alone] = run(EngineCore(paged_language, capacity), [long])
    *_, found = run(EngineCore(paged_language, capacity), [*company, long], [0, 0, 5])
    assert final_result(found) == final_result(alone)


def test_a_prompt_survives_the_failure_of_sequences_that_took_it_along(
    paged_language: PagedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = core_of(paged_language, blocks=100)
    made = replace(endless(prompt_request(0, 1, 40)), prompt_ids=(2, 3))
    long = EngineRequest(made.rules, prompt_ids=(2, 3, 5) * 26)
    lost: list[Event] = []
    kept: list[Event] = []
    core.add(SequenceState(made, lost.append))
    core.step()
    core.add(SequenceState(long, kept.append))
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(DecoderCall, "run", lambda *arguments: 1 / 0)
        core._decode_step()
    with pytest.raises(InternalError, match="the log of the model has the cause"):
        final_result(lost)
    finish(core)
    assert_follows([final_result(kept)], [long], language_logits)
    close(core)


@pytest.mark.parametrize(
    "vocabulary_size", [5, 1814, 8209, 9216, 58_101, 256_206], ids=lambda size: f"{size} tokens"
)
def test_the_choice_is_a_stable_ranking(vocabulary_size: int) -> None:
    """Of small vocabularies, of those that blocks divide, and of those that they do not."""
    logits = ops.parameter([-1, vocabulary_size], np.float32)
    model = add_token_choice(
        openvino.Model([ops.result(logits)], [logits], "choice"), vocabulary_size
    )
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    random = np.random.default_rng(vocabulary_size)
    values = random.normal(size=(6, vocabulary_size)).astype(np.float32)
    values[0] = random.integers(0, 3, vocabulary_size)  # many ties
    values[1, -3:] = 9  # the last ones are the best, and equal
    values[2] = 0
    values[3, 1:] = -np.inf
    values[4, :-1] = -np.inf
    _, token_ids, log_probs = compiled(values).values()
    count = min(COUNT, vocabulary_size)
    wanted = np.argsort(-values, axis=1, kind="stable")[:, :count]
    scores = np.take_along_axis(values, wanted, 1).astype(np.float64)
    is_possible = np.isfinite(scores)
    assert token_ids[is_possible].tolist() == wanted[is_possible].tolist()
    normaliser = np.log(np.exp(values.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(log_probs, scores - normaliser, rtol=1e-5, atol=1e-5)
