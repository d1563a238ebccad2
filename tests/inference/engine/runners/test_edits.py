"""Sparse edits equal `transformers`' processors over whole rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from inference.engine.runners.candidates import (
    CandidateRequest,
    HostLogits,
    plain_request,
    select_candidates,
)
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.runners.ort.logits_graphs import TopK
from inference.engine.runners.ort.sessions import session_options
from inference.generation import Generation
from tests.inference.engine.fake_runner import edit_after

VOCABULARY = 40
TOPK = TopK(session_options(threads=1), VOCABULARY, CpuDevice())


def host(logits: np.ndarray) -> HostLogits:
    return HostLogits(logits, TOPK.rank)


def rules(**overrides: object) -> Generation:
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


tokens = st.integers(0, VOCABULARY - 1)
histories = st.lists(tokens, min_size=1, max_size=12)
edited = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.7, 5.0]),
        "logit_bias": st.dictionaries(
            tokens, st.sampled_from([-100.0, -2.0, 1.5, 20.0]), max_size=4
        ),
    }
)


@given(
    seed=st.integers(0, 9999), history=histories, overrides=edited,
    banned=st.sets(tokens, max_size=5), count=st.integers(1, VOCABULARY),
)  # fmt: skip
def test_edited_logits_rank_as_after_the_processors(
    seed: int, history: list[int], overrides: dict[str, object], banned: set[int], count: int
) -> None:
    logits = (np.random.default_rng(seed).normal(size=(3, VOCABULARY)) * 3).astype(np.float32)
    wanted = processed(logits[1], history, rules(**overrides), sorted(banned))
    edit = edit_after(rules(**overrides), history, (), banned)
    plain_rows = select_candidates(host(logits.copy()), [plain_request(count)] * 3)
    found = select_candidates(
        host(logits), [plain_request(1), CandidateRequest(count, edit), plain_request(1)]
    )
    order = np.lexsort((np.arange(VOCABULARY), -wanted))[:count]
    assert found.token_ids[1].tolist() == order.tolist()
    log_probs = torch.from_numpy(wanted).log_softmax(-1).numpy()[order]
    assert found.log_probs[1] == pytest.approx(log_probs, abs=1e-5)
    for row in (0, 2):  # rows without an edit are unchanged
        assert found.token_ids[row].tolist() == plain_rows.token_ids[row].tolist()
        assert found.log_probs[row].tolist() == plain_rows.log_probs[row].tolist()


@given(
    seed=st.integers(0, 9999), history=histories, overrides=edited,
    banned=st.sets(tokens, max_size=5), count=st.integers(1, VOCABULARY),
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
    beams = rules(**overrides, num_beams=2, renormalize_logits=renormalises)
    logits = (np.random.default_rng(seed).normal(size=(1, VOCABULARY)) * 3).astype(np.float32)
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
    requested = rules(presence_penalty=0.5, frequency_penalty=0.25)
    logits = np.linspace(1, 2, VOCABULARY, dtype=np.float32)[None].copy()
    edit = edit_after(requested, prompt=[7, 7], generated=[3, 5, 3, 3])
    found = select_candidates(host(logits.copy()), [CandidateRequest(VOCABULARY, edit)])
    changed = logits[0].copy()
    changed[3] -= 0.5 + 3 * 0.25
    changed[5] -= 0.5 + 0.25  # 7 is of the prompt, which neither penalises
    wanted = torch.from_numpy(changed).log_softmax(-1).numpy()
    ours = np.empty(VOCABULARY, np.float32)
    ours[found.token_ids[0]] = found.log_probs[0]
    assert ours == pytest.approx(wanted, abs=1e-6)


def test_mass_is_of_the_row_at_its_temperature() -> None:
    logits = np.random.default_rng(5).normal(size=(2, VOCABULARY)).astype(np.float32)
    found = select_candidates(
        host(logits), [plain_request(1), CandidateRequest(1, temperature=0.5)]
    )
    assert found.masses is not None
    below = logits - logits.max(axis=1, keepdims=True)
    assert found.masses == pytest.approx([np.exp(below[0]).sum(), np.exp(below[1] * 2).sum()])


def test_mass_is_absent_unless_requested() -> None:
    assert select_candidates(host(np.zeros((1, 4), np.float32)), [plain_request(2)]).masses is None


def test_more_candidates_continue_the_ranking_of_their_row() -> None:
    logits = np.random.default_rng(6).normal(size=(2, VOCABULARY)).astype(np.float32)
    edit = edit_after(rules(), (), (), banned={4})
    found = select_candidates(host(logits), [plain_request(3), CandidateRequest(3, edit)])
    for row in (0, 1):
        assert found.more(row, 7).token_ids.shape == (1, 7)
        whole = found.more(row, 2 * VOCABULARY)
        assert whole.token_ids[0, :3].tolist() == found.token_ids[row].tolist()
        assert whole.log_probs[0, :3].tolist() == found.log_probs[row].tolist()
        assert sorted(whole.token_ids[0].tolist()) == list(range(VOCABULARY))
    assert found.more(1, VOCABULARY).token_ids[0, -1] == 4


@given(
    seed=st.integers(0, 9999), history=histories, overrides=edited,
    banned=st.sets(tokens, max_size=5), num_beams=st.sampled_from([1, 2]),
    renormalises=st.booleans(), asked=st.lists(tokens, min_size=1, max_size=6, unique=True),
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
    requested = rules(**overrides, num_beams=num_beams, renormalize_logits=renormalises)
    logits = (np.random.default_rng(seed).normal(size=(2, VOCABULARY)) * 3).astype(np.float32)
    edit = edit_after(requested, history, (), banned)
    whole = select_candidates(
        host(logits.copy()), [plain_request(1), CandidateRequest(VOCABULARY, edit)]
    )
    found = select_candidates(
        host(logits.copy()), [plain_request(1), CandidateRequest(1, edit, given=tuple(asked))]
    )
    of_token = dict(zip(whole.ids[1], whole.log_probs[1].tolist(), strict=True))
    wanted = [of_token.get(token, -np.inf) for token in asked]
    assert list(found.given) == [1]
    # Two units in the last place of float32 where a score is large.
    assert found.given[1].tolist() == pytest.approx(wanted, rel=2.4e-7, abs=2e-5)
