"""Token history, truncation and sparse edits against the processors of `transformers`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    Edit,
    HostLogits,
    plain_request,
    select_candidates,
)
from inference.engine.runners.ort.logits_graphs import TopK
from inference.engine.runners.ort.sessions import CpuDevice, session_options
from inference.engine.search import sampling
from inference.engine.search.logits_processors import TokenHistory
from inference.engine.search.protocol import SearchInput
from inference.engine.search.sampling import SampleSearch, Truncated, draw, truncate, uniforms
from inference.errors import InvalidRequest
from inference.generation import Generation
from tests.inference.engine.fake_runner import FakeRunner, edit_after, hashed_logits, rank

tokens = st.integers(0, 30)
histories = st.one_of(
    st.lists(tokens, max_size=150),
    st.integers(0, 200).map(lambda count: list(range(count))),  # more than the first capacity
)
penalising = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25]),
        "logit_bias": st.dictionaries(tokens, st.sampled_from([-2.0, 3.0]), max_size=4),
        "no_repeat_ngram_size": st.integers(0, 4),
    },
)


def rules(**overrides: Any) -> Generation:
    return Generation(eos_token_ids=(1,), pad_token_id=0, max_new_tokens=200, **overrides)


def cells(edit: Edit) -> dict[int, tuple[float, float, float]]:
    """Token → (bias, factor, offset)."""
    values = (edit.bias, edit.factor, edit.offset)
    columns = zip(*(each.tolist() for each in values), strict=True)
    found = dict(zip(edit.token_ids.tolist(), columns, strict=True))
    assert len(found) == len(edit.token_ids), "tokens are distinct"
    return found


def wanted_cells(
    of: Generation, prompt: list[int], generated: list[int], banned: set[int]
) -> dict[int, tuple[float, float, float]]:
    """The definition: every token of the whole history is looked at."""
    penalised = {*prompt, *generated} if of.repetition_penalty != 1 else set()
    has_counts = of.presence_penalty != 0 or of.frequency_penalty != 0
    counts = Counter(generated if has_counts else ())
    found = {}
    for token in {*of.logit_bias, *penalised, *counts, *banned}:
        offset = -(of.presence_penalty * (token in counts) + of.frequency_penalty * counts[token])
        found[token] = tuple(
            float(np.float32(value))
            for value in (
                of.logit_bias.get(token, 0),
                of.repetition_penalty if token in penalised else 1,
                -np.inf if token in banned else offset,
            )
        )
    return found


def wanted_ends(size: int, history: list[int]) -> set[int]:
    if not size:
        return set()
    ngrams = [tuple(history[start : start + size]) for start in range(len(history) + 1 - size)]
    last = tuple(history[len(history) + 1 - size :])
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == last}


@given(overrides=penalising, prompt=histories, generated=histories, banned=st.sets(tokens))
def test_growing_equals_the_definition(
    overrides: dict[str, Any], prompt: list[int], generated: list[int], banned: set[int]
) -> None:
    of = rules(**overrides)
    history = TokenHistory(of, prompt)
    for token in generated:
        history.accept(token)
    assert cells(history.edit(banned)) == wanted_cells(of, prompt, generated, banned)
    assert cells(history.edit()) == wanted_cells(of, prompt, generated, set())
    ends = wanted_ends(of.no_repeat_ngram_size, prompt + generated)
    assert history.repeated_ngram_ends() == ends
    assert history.token_ids == prompt + generated
    assert (history.prompt_length, history.generated) == (len(prompt), len(generated))


@given(overrides=penalising, shared=histories, left=histories, right=histories)
def test_copies_grow_by_themselves_and_edits_do_not_change(
    overrides: dict[str, Any], shared: list[int], left: list[int], right: list[int]
) -> None:
    of = rules(**overrides)
    first = TokenHistory(of, shared)
    before, expected = first.edit(), cells(first.edit())
    second = first.copy()
    for history, grown in ((first, left), (second, right)):
        for token in grown:
            history.accept(token)
    for history, grown in ((first, left), (second, right)):
        assert cells(history.edit()) == wanted_cells(of, shared, grown, set())
        assert history.repeated_ngram_ends() == wanted_ends(of.no_repeat_ngram_size, shared + grown)
    assert cells(before) == expected


def test_last_tokens_are_compared_whole() -> None:
    history = TokenHistory(rules(), [4, 5])
    history.accept(6)
    assert history.ends_with((5, 6))
    assert not history.ends_with((6, 5))
    assert not history.ends_with((3, 4, 5, 6))


VOCABULARY = 300


def rules_truncation(**overrides: object) -> Generation:
    fields = {"pad_token_id": 0, "max_new_tokens": 12, "do_sample": True, **overrides}
    return Generation.model_validate(fields)


def wanted(logits: np.ndarray, requested: Generation) -> np.ndarray:
    """(V,) probabilities after `transformers`' warpers, in float64."""
    warpers = LogitsProcessorList()
    if requested.temperature != 1:
        warpers.append(TemperatureLogitsWarper(requested.temperature))
    if requested.top_k:
        warpers.append(TopKLogitsWarper(requested.top_k))
    if requested.top_p < 1:
        warpers.append(TopPLogitsWarper(requested.top_p))
    if requested.min_p > 0:
        warpers.append(MinPLogitsWarper(requested.min_p))
    if requested.typical_p < 1:
        warpers.append(TypicalLogitsWarper(requested.typical_p))
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    return warpers(torch.zeros(1, 1, dtype=torch.long), scores)[0].softmax(-1).numpy()


def search_input(
    logits: np.ndarray, requested: Generation, count: int
) -> tuple[Candidates, Truncated | None]:
    """The best `count` of one row, and what the rules keep of them."""
    ranked = rank(logits[None], count, np.array([[requested.temperature]], np.float32))
    mass = float(ranked.masses[0])
    is_whole = count == len(logits)
    return ranked, truncate(ranked.log_probs[0], requested, mass, is_whole=is_whole)


warps = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1.0, 0.3, 0.7, 1.6]),
        "top_k": st.sampled_from([0, 0, 1, 5, 40, 299, 500]),
        "top_p": st.sampled_from([1.0, 1.0, 0.1, 0.5, 0.93]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
        "typical_p": st.sampled_from([1.0, 1.0, 0.2, 0.8]),
    }
)


def some_logits(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=VOCABULARY) * 2.5).astype(np.float32)


@given(seed=st.integers(0, 10_000), overrides=warps)
def test_truncated_probabilities_are_those_of_transformers(
    seed: int, overrides: dict[str, float]
) -> None:
    logits, given_rules = some_logits(seed), rules_truncation(**overrides)
    ranked, found = search_input(logits, given_rules, VOCABULARY)
    ours = np.zeros(VOCABULARY)
    ours[ranked.token_ids[0, : len(found.weights)]] = found.weights / found.mass
    theirs = wanted(logits, given_rules)
    assert (ours > 0).tolist() == (theirs > 0).tolist()
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-9)


@given(
    seed=st.integers(0, 10_000),
    overrides=warps,
    count=st.sampled_from([1, 2, 6, 41, 64, 200, VOCABULARY - 1]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_draw_does_not_depend_on_the_candidate_count(
    seed: int, overrides: dict[str, float], count: int, uniform: float
) -> None:
    logits, given_rules = some_logits(seed), rules_truncation(**overrides)
    _, whole = search_input(logits, given_rules, VOCABULARY)
    _, some = search_input(logits, given_rules, count)
    assert whole is not None
    index = None if some is None else draw(some, uniform)
    assert index in (None, draw(whole, uniform))


def test_few_candidates_decide_most_draws() -> None:
    """Otherwise all rows would take the full path, and the tests above would miss the short one."""
    logits = some_logits(1)
    decided = [search_input(logits, rules_truncation(**overrides), 64)[1] for overrides in (
        {}, {"top_k": 50}, {"top_p": 0.5, "temperature": 0.7}, {"min_p": 0.1},
    )]  # fmt: skip
    assert all(found is not None for found in decided)
    assert draw(decided[0], 0.5) is not None
    assert draw(decided[0], 0.999999) is None


def test_equals_of_the_kth_are_kept() -> None:
    logits = np.array([3, 2, 2, 2, 1], np.float32)
    _, found = search_input(logits, rules_truncation(top_k=2), 5)
    assert len(found.weights) == 4
    assert (
        search_input(logits, rules_truncation(top_k=2), 3)[1] is None
    )  # there may be more of them


@pytest.mark.parametrize(
    "overrides",
    [{}, {"temperature": 1.4, "top_p": 0.8}, {"top_k": 7}, {"typical_p": 0.7}, {"min_p": 0.1}],
)
def test_samples_follow_the_distribution(overrides: dict[str, float]) -> None:
    """Chi-square of 3 200 first tokens; the seeds are fixed, so the answer is, too."""
    vocabulary, many = 40, 200
    logits = (np.random.default_rng(3).normal(size=vocabulary)).astype(np.float32)
    runner = FakeRunner(lambda source, history: logits.copy(), vocabulary)
    requests = [
        EngineRequest(
            rules_truncation(
                decoder_start_ids=(0,), max_new_tokens=1, seed=seed, num_return_sequences=16,
                **overrides,
            )
        )
        for seed in range(many)
    ]  # fmt: skip
    answers = decode(runner, requests)
    drawn = [h.token_ids[0] for found in answers for h in found.hypotheses]
    observed = np.bincount(drawn, minlength=vocabulary)
    expected = wanted(logits, rules_truncation(**overrides)) * len(drawn)
    assert not observed[expected == 0].any()
    likely = expected >= 5
    statistic = (((observed - expected) ** 2)[likely] / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert freedom > 3
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def test_samples_are_independent_of_each_other() -> None:
    """Neighbouring samples and seeds agree no more often than by chance."""
    numbers = np.array([[uniforms(seed, n).random(8) for n in range(8)] for seed in range(32)])
    assert len(np.unique(numbers)) == numbers.size
    flat = numbers.reshape(256, 8)
    assert abs(np.corrcoef(flat[:-1, 0], flat[1:, 0])[0, 1]) < 0.2
    assert numbers.mean() == pytest.approx(0.5, abs=0.03)


def sampled(**overrides: object) -> list[tuple[int, ...]]:
    runner = FakeRunner(hashed_logits(30), 30)
    request = EngineRequest(
        rules_truncation(decoder_start_ids=(0,), eos_token_ids=(1,), **overrides), np.array([4, 5])
    )
    return [found.token_ids for found in decode(runner, [request])[0].hypotheses]


def test_first_of_several_samples_equals_a_single_one() -> None:
    several = sampled(seed=7, num_return_sequences=5)
    assert several[0] == sampled(seed=7)[0]
    assert len(set(several)) == 5


def test_without_a_seed_answers_differ() -> None:
    assert len({tuple(sampled()) for _ in range(6)}) > 1


def test_best_of_returns_the_likeliest_first() -> None:
    runner = FakeRunner(hashed_logits(30), 30)
    start = {"decoder_start_ids": (0,), "eos_token_ids": (1,), "seed": 3}

    def means(requested: Generation) -> list[float]:
        request = EngineRequest(requested.model_copy(update={"length_penalty": 1.0}), np.array([4]))
        return [found.score for found in decode(runner, [request])[0].hypotheses]

    every = means(rules_truncation(**start, num_return_sequences=8))
    best = means(rules_truncation(**start, num_return_sequences=3, best_of=8))
    assert best == sorted(every, reverse=True)[:3]
    assert every != sorted(every, reverse=True)


def test_ban_of_every_token_is_an_invalid_request() -> None:
    runner = FakeRunner(hashed_logits(4), 4)
    banned = rules_truncation(decoder_start_ids=(0,), suppress_tokens=(0, 1, 2, 3))
    with pytest.raises(InvalidRequest, match="ban every token"):
        decode(runner, [EngineRequest(banned, np.array([1]))])


@pytest.mark.parametrize("overrides", [{"top_p": 0.5}, {"min_p": 0.9}, {"typical_p": 0.6}, {}])
def test_flat_distribution_is_drawn_from_in_few_rankings(overrides: dict[str, float]) -> None:
    logits = np.random.default_rng(2).normal(size=VOCABULARY).astype(np.float32) / 100
    counts: list[int] = []

    def counted(rows: np.ndarray, k: int, temperatures: np.ndarray | None) -> Candidates:
        counts.append(k)
        return rank(rows, k, temperatures)

    sampling_rules = rules_truncation(seed=5, max_new_tokens=1, **overrides)
    search = SampleSearch(EngineRequest(sampling_rules, prompt_ids=(0,)))
    candidates = select_candidates(HostLogits(logits[None].copy(), counted), search.row_requests)
    assert search.advance(SearchInput(candidates, 0)) is None
    assert counts[0] == sampling.DEFAULT_CANDIDATES < counts[-1], (
        "64 of 300 nearly equal ones decide nothing"
    )
    assert len(counts) <= 3
    ranked, whole = search_input(logits, sampling_rules, VOCABULARY)
    assert whole is not None
    drawn = draw(whole, uniforms(5, 0).random())
    assert search.hypotheses()[0].token_ids == (ranked.token_ids[0, drawn],)


SMALL_VOCABULARY = 40
TOPK = TopK(session_options(threads=1), SMALL_VOCABULARY, CpuDevice())


def host(logits: np.ndarray) -> HostLogits:
    return HostLogits(logits, TOPK.rank)


def edit_rules(**overrides: object) -> Generation:
    return Generation.model_validate({"pad_token_id": 0, "max_new_tokens": 9, **overrides})


def processed(
    scores: np.ndarray, history: list[int], requested: Generation, banned: list[int]
) -> np.ndarray:
    """(V,) scores after `transformers`' processors."""
    processors = LogitsProcessorList()
    if requested.logit_bias:
        biases = {(token,): bias for token, bias in requested.logit_bias.items()}
        processors.append(SequenceBiasLogitsProcessor(biases))
    if requested.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(requested.repetition_penalty))
    if banned:
        processors.append(SuppressTokensLogitsProcessor(banned))
    if requested.renormalize_logits:
        processors.append(LogitNormalization())
    return processors(torch.tensor([history]), torch.from_numpy(scores)[None].clone())[0].numpy()


small_tokens = st.integers(0, SMALL_VOCABULARY - 1)
short_histories = st.lists(small_tokens, min_size=1, max_size=12)
edited = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7, 5.0]),
        "logit_bias": st.dictionaries(
            small_tokens, st.sampled_from([-100.0, -2.0, 1.5, 20.0]), max_size=4
        ),
    }
)


@given(
    seed=st.integers(0, 9999), history=short_histories, overrides=edited,
    banned=st.sets(small_tokens, max_size=5), count=st.integers(1, SMALL_VOCABULARY),
)  # fmt: skip
def test_edited_logits_rank_as_after_the_processors(
    seed: int, history: list[int], overrides: dict[str, object], banned: set[int], count: int
) -> None:
    logits = (np.random.default_rng(seed).normal(size=(3, SMALL_VOCABULARY)) * 3).astype(np.float32)
    wanted = processed(logits[1], history, edit_rules(**overrides), sorted(banned))
    edit = edit_after(edit_rules(**overrides), history, (), banned)
    plain_rows = select_candidates(host(logits.copy()), [plain_request(count)] * 3)
    found = select_candidates(
        host(logits), [plain_request(1), CandidateRequest(count, edit), plain_request(1)]
    )
    order = np.lexsort((np.arange(SMALL_VOCABULARY), -wanted))[:count]
    assert found.token_ids[1].tolist() == order.tolist()
    log_probs = torch.from_numpy(wanted).log_softmax(-1).numpy()[order]
    assert found.log_probs[1] == pytest.approx(log_probs, abs=1e-5)
    for row in (0, 2):  # rows without an edit are unchanged
        assert found.token_ids[row].tolist() == plain_rows.token_ids[row].tolist()
        assert found.log_probs[row].tolist() == plain_rows.log_probs[row].tolist()


@given(
    seed=st.integers(0, 9999), history=short_histories, overrides=edited,
    banned=st.sets(small_tokens, max_size=5), count=st.integers(1, SMALL_VOCABULARY),
    renormalises=st.booleans(),
)  # fmt: skip
def test_edited_log_probs_rank_as_those_of_a_beam(
    seed: int,
    history: list[int],
    overrides: dict[str, object],
    banned: set[int],
    count: int,
    renormalises: bool,
) -> None:
    beams = edit_rules(**overrides, num_beams=2, renormalize_logits=renormalises)
    logits = (np.random.default_rng(seed).normal(size=(1, SMALL_VOCABULARY)) * 3).astype(np.float32)
    log_probs = torch.from_numpy(logits[0]).log_softmax(-1).numpy()
    wanted = processed(log_probs, history, beams, sorted(banned))
    found = select_candidates(
        host(logits), [CandidateRequest(count, edit_after(beams, history, (), banned))]
    )
    best = np.sort(wanted)[::-1][:count]
    assert found.log_probs[0] == pytest.approx(best, rel=1e-5, abs=1e-5)
    alive = found.log_probs[0] > -np.inf
    ids = found.token_ids[0][alive]
    assert len(set(ids.tolist())) == len(ids)
    assert wanted[ids] == pytest.approx(best[alive], rel=1e-5, abs=1e-5)


def test_presence_counts_once_and_frequency_each_time() -> None:
    requested = edit_rules(presence_penalty=0.5, frequency_penalty=0.25)
    logits = np.linspace(1, 2, SMALL_VOCABULARY, dtype=np.float32)[None].copy()
    edit = edit_after(requested, prompt=[7, 7], generated=[3, 5, 3, 3])
    found = select_candidates(host(logits.copy()), [CandidateRequest(SMALL_VOCABULARY, edit)])
    changed = logits[0].copy()
    changed[3] -= 0.5 + 3 * 0.25
    changed[5] -= 0.5 + 0.25  # 7 is of the prompt, which neither penalises
    wanted = torch.from_numpy(changed).log_softmax(-1).numpy()
    ours = np.empty(SMALL_VOCABULARY, np.float32)
    ours[found.token_ids[0]] = found.log_probs[0]
    assert ours == pytest.approx(wanted, abs=1e-6)


def test_mass_is_of_the_row_at_its_temperature() -> None:
    logits = np.random.default_rng(5).normal(size=(2, SMALL_VOCABULARY)).astype(np.float32)
    found = select_candidates(
        host(logits), [plain_request(1), CandidateRequest(1, temperature=0.5)]
    )
    assert found.masses is not None
    below = logits - logits.max(axis=1, keepdims=True)
    assert found.masses == pytest.approx([np.exp(below[0]).sum(), np.exp(below[1] * 2).sum()])


def test_mass_is_absent_unless_requested() -> None:
    assert select_candidates(host(np.zeros((1, 4), np.float32)), [plain_request(2)]).masses is None


def test_more_candidates_continue_the_ranking_of_their_row() -> None:
    logits = np.random.default_rng(6).normal(size=(2, SMALL_VOCABULARY)).astype(np.float32)
    edit = edit_after(edit_rules(), (), (), banned={4})
    found = select_candidates(host(logits), [plain_request(3), CandidateRequest(3, edit)])
    for row in (0, 1):
        assert found.more(row, 7).token_ids.shape == (1, 7)
        whole = found.more(row, 2 * SMALL_VOCABULARY)
        assert whole.token_ids[0, :3].tolist() == found.token_ids[row].tolist()
        assert whole.log_probs[0, :3].tolist() == found.log_probs[row].tolist()
        assert sorted(whole.token_ids[0].tolist()) == list(range(SMALL_VOCABULARY))
    assert found.more(1, SMALL_VOCABULARY).token_ids[0, -1] == 4


@given(
    seed=st.integers(0, 9999), history=short_histories, overrides=edited,
    banned=st.sets(small_tokens, max_size=5), num_beams=st.sampled_from([1, 2]),
    renormalises=st.booleans(), asked=st.lists(small_tokens, min_size=1, max_size=6, unique=True),
)  # fmt: skip
def test_given_tokens_have_the_log_probabilities_of_their_edited_row(
    seed: int,
    history: list[int],
    overrides: dict[str, object],
    banned: set[int],
    num_beams: int,
    renormalises: bool,
    asked: list[int],
) -> None:
    requested = edit_rules(**overrides, num_beams=num_beams, renormalize_logits=renormalises)
    logits = (np.random.default_rng(seed).normal(size=(2, SMALL_VOCABULARY)) * 3).astype(np.float32)
    edit = edit_after(requested, history, (), banned)
    whole = select_candidates(
        host(logits.copy()), [plain_request(1), CandidateRequest(SMALL_VOCABULARY, edit)]
    )
    found = select_candidates(
        host(logits.copy()), [plain_request(1), CandidateRequest(1, edit, given=tuple(asked))]
    )
    of_token = dict(zip(whole.ids[1], whole.log_probs[1].tolist(), strict=True))
    wanted = [of_token.get(token, -np.inf) for token in asked]
    assert list(found.given) == [1]
    # Two units in the last place of float32 where a score is large.
    assert found.given[1].tolist() == pytest.approx(wanted, rel=2.4e-7, abs=2e-5)
