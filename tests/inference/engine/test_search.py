"""Greedy and beam search choose what `transformers.generate` chooses, and score it.

The models are a small random MarianMT and a GPT-2; a FakeRunner computes each row's logits with
them from scratch, so that only the searches are under test, not graphs or caches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from inference.bundle.manifest import Bundle, Limits
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import (
    CandidateRequest,
    Candidates,
    HostLogits,
    select_candidates,
)
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.logits_processors import Constraint
from inference.engine.search.protocol import Beams, Continuations, search_inputs
from inference.engine.state.device import Device
from inference.generation import Finished, Generation, Hypothesis, TokenChunk
from tests.export.twins import make_twin, randomise
from tests.inference.engine.fake_runner import (
    FakeRunner,
    History,
    edit_after,
    hashed_logits,
    rank,
    run_staggered,
)
from tests.inference.tiny_models import make_manifest

VOCABULARY, END, PAD = 32, 0, 31


@functools.cache
def marian() -> MarianMTModel:
    """A Marian with every parameter random, and an end token at varying lengths."""
    torch.manual_seed(7)
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None, num_beams=1,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
        model.final_logits_bias.uniform_(-1, 1)
    return model


@functools.lru_cache(maxsize=100_000)
def marian_logits(source: History, history: History) -> np.ndarray:
    with torch.inference_mode():
        ids = torch.tensor([source or (1,)]), torch.tensor([history])
        logits = marian()(input_ids=ids[0], decoder_input_ids=ids[1]).logits
    return logits[0, -1].numpy()


@functools.cache
def gpt2() -> GPT2LMHeadModel:
    """A GPT-2 with every parameter random."""
    torch.manual_seed(11)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=PAD,
        eos_token_id=END, pad_token_id=PAD, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.7)
    return model


@functools.lru_cache(maxsize=100_000)
def gpt2_logits(source: History, history: History) -> np.ndarray:
    with torch.inference_mode():
        return gpt2()(input_ids=torch.tensor([history])).logits[0, -1].numpy()


SAME_NAMES = (
    "pad_token_id", "max_new_tokens", "num_beams", "num_return_sequences", "no_repeat_ngram_size",
    "forced_bos_token_id", "forced_eos_token_id", "min_new_tokens", "repetition_penalty",
    "renormalize_logits",
)  # fmt: skip


def generated(
    model: MarianMTModel | GPT2LMHeadModel, prompt: list[int], rules: Generation
) -> list[tuple[list[int], float]]:
    """`transformers.generate`: (generated tokens, score) of each returned sequence.

    Its placeholders for missing beams (scores of about -1e9) are dropped: we return fewer.
    """
    options = rules.model_dump(include=set(SAME_NAMES))
    options["bad_words_ids"] = [list(word) for word in rules.bad_words_ids] or None
    options["suppress_tokens"] = list(rules.suppress_tokens) or None
    options["sequence_bias"] = {(token,): bias for token, bias in rules.logit_bias.items()} or None
    if rules.num_beams > 1:
        options |= rules.model_dump(include={"early_stopping", "length_penalty"})
    if rules.decoder_start_ids:
        options["decoder_start_token_id"] = rules.decoder_start_ids[0]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), **options,
            eos_token_id=list(rules.eos_token_ids) or None, do_sample=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    start = 1 if rules.decoder_start_ids else len(prompt)
    scores = output.sequences_scores.tolist() if rules.num_beams > 1 else [0.0]
    found = zip(output.sequences[:, start:].tolist(), scores, strict=True)
    return [(_without_padding(tokens, rules), score) for tokens, score in found if score > -1e6]


def _without_padding(tokens: list[int], rules: Generation) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in rules.eos_token_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def translated(source: list[int], rules: Generation) -> Finished:
    runner = FakeRunner(marian_logits, VOCABULARY)
    return decode(runner, [EngineRequest(rules, source_ids=np.array(source))])[0]


def continued(prompt: list[int], rules: Generation) -> Finished:
    runner = FakeRunner(gpt2_logits, VOCABULARY)
    return decode(runner, [EngineRequest(rules, prompt_ids=tuple(prompt))])[0]


def assert_alike(found: Finished, wanted: list[tuple[list[int], float]], rules: Generation) -> None:
    tokens = [list(hypothesis.token_ids) for hypothesis in found.hypotheses]
    assert tokens == [one for one, _ in wanted]
    if rules.num_beams > 1:  # `transformers` scores no greedy sequence
        ours = [hypothesis.score for hypothesis in found.hypotheses]
        factor = max(1, *map(len, tokens)) ** max(0, -rules.length_penalty)  # of rounded sums
        assert ours == pytest.approx([score for _, score in wanted], rel=1e-4, abs=1e-5 * factor)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    beams = draw(st.sampled_from([1, 1, 2, 3, 4]))
    longest = draw(st.integers(1, 12))
    tokens = st.integers(1, VOCABULARY - 2)
    free = st.integers(1, VOCABULARY - 2).filter(lambda token: token != 3)  # 3 may be forced
    return Generation(
        decoder_start_ids=(PAD,),
        eos_token_ids=draw(st.sampled_from([(END,), (END, 5), (END, 5, 9)])),
        pad_token_id=PAD,
        max_new_tokens=longest,
        num_beams=beams,
        num_return_sequences=draw(st.integers(1, beams)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 1, 2, 3])),
        bad_words_ids=tuple(
            draw(st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4))
        ),
        suppress_tokens=tuple(draw(st.lists(free, max_size=3))),
        forced_bos_token_id=draw(st.sampled_from([None, None, 3])),
        forced_eos_token_id=draw(st.sampled_from([None, END])),
        min_new_tokens=draw(st.sampled_from([0, 0, longest // 2, longest])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.8, 4.0])),
        logit_bias=draw(
            st.dictionaries(
                tokens, st.sampled_from([-100.0, -1.5, 0.5, 2.0, 30.0]), max_size=draw(MANY)
            )
        ),
        renormalize_logits=draw(st.booleans()),
    )


MANY = st.sampled_from([0, 0, 3, VOCABULARY])
PROMPTS = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(source=PROMPTS, rules=generations())
def test_translations_are_those_of_generate(source: list[int], rules: Generation) -> None:
    wanted = generated(marian(), source, rules)
    assert_alike(translated(source, rules), wanted, rules)


@given(prompt=PROMPTS, rules=generations())
def test_continuations_are_those_of_generate(prompt: list[int], rules: Generation) -> None:
    rules = rules.model_copy(update={"decoder_start_ids": ()})
    wanted = generated(gpt2(), prompt, rules)
    assert_alike(continued(prompt, rules), wanted, rules)


WIDTH, PROTOCOL_VOCABULARY = 3, 12
VALUES = (0.0, -0.5, -0.5, -1.0, -2.0, -np.inf)  # so few that many are equal
FREE = Constraint()


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    banned = frozenset(draw(st.lists(st.integers(0, PROTOCOL_VOCABULARY - 1), max_size=4)))
    forced = draw(st.sampled_from([None, None, None, 5]))
    return Constraint(forced=forced, banned=banned)


@st.composite
def some_beams(draw: st.DrawFn) -> Beams | None:
    """Beams in any row order, sometimes fewer than the sequence's rows."""
    if draw(st.integers(0, 4)) == 0:
        return None
    live = draw(st.integers(1, WIDTH))
    rows = draw(st.permutations(range(WIDTH)))[:live]
    scores = sorted(draw(st.lists(st.sampled_from(VALUES[:5]), min_size=live, max_size=live)))
    obeyed = draw(st.sampled_from([[], [draw(constraints()) for _ in range(live)]]))
    missing = WIDTH - live
    return Beams(
        (*rows, *[0] * missing),
        (*scores[::-1], *[-np.inf] * missing),
        obeyed,
        draw(st.sampled_from([2, 6, 9])),
    )


def some_candidates(sequences: int, seed: int, k: int) -> Candidates:
    rng = np.random.default_rng(seed)
    rows = sequences * WIDTH
    ids = np.stack([rng.permutation(PROTOCOL_VOCABULARY)[:k] for _ in range(rows)])
    log_probs = -np.sort(-rng.choice(VALUES, (rows, k)), axis=1).astype(np.float32)
    return Candidates(ids, log_probs)


def wanted(candidates: Candidates, first: int, beams: Beams) -> list[tuple[int, int, float]]:
    """(parent, token, score) one by one; Python's sort is stable."""
    found = []
    for place, (row, score) in enumerate(zip(beams.rows, beams.scores, strict=True)):
        constraint = beams.constraints[place] if place < len(beams.constraints) else FREE
        if constraint.forced is not None:
            found.append((place, constraint.forced, score))
            continue
        log_probs = candidates.log_probs[first + row]
        for token, log_prob in zip(candidates.ids[first + row], log_probs, strict=True):
            if token not in constraint.banned:
                found.append((place, token, float(np.float32(score) + log_prob)))
    alive = [one for one in found if one[2] > -np.inf]
    return sorted(alive, key=lambda one: -one[2])[: beams.wanted]


@given(
    beams=st.lists(some_beams(), min_size=1, max_size=5),
    seed=st.integers(0, 9999),
    k=st.integers(1, PROTOCOL_VOCABULARY),
)
def test_each_sequence_gets_the_candidates_it_would_get_alone(
    beams: list[Beams | None], seed: int, k: int
) -> None:
    candidates = some_candidates(len(beams), seed, k)
    untouched = candidates.token_ids.copy(), candidates.log_probs.copy()
    for index, search_input in enumerate(search_inputs(candidates, beams, WIDTH)):
        one = beams[index]
        assert search_input.first == index * WIDTH
        if one is None:
            assert search_input.continuations is None
            continue
        found = list(zip(*search_input.continuations, strict=True))
        assert found == wanted(candidates, search_input.first, one)
    for ours, before in zip((candidates.token_ids, candidates.log_probs), untouched, strict=True):
        assert ours.tolist() == before.tolist()


def test_nan_is_no_continuation() -> None:
    log_probs = np.full((1, 3), np.nan, np.float32)
    beams = Beams((0,), (0.0,), (), 2)
    (search_input,) = search_inputs(Candidates(np.arange(3)[None], log_probs), [beams], 1)
    assert search_input.continuations == Continuations([], [], [])


@pytest.mark.parametrize("rows_each", [1, WIDTH])
def test_first_rows_are_those_of_the_call(rows_each: int) -> None:
    found = search_inputs(some_candidates(4, 1, 2), [None] * 4, rows_each)
    assert [search_input.first for search_input in found] == [
        index * rows_each for index in range(4)
    ]


LOG_PROBS_VOCABULARY = 30
LOGITS = hashed_logits(LOG_PROBS_VOCABULARY)
WAYS: dict[str, dict[str, object]] = {
    "greedy": {},
    "penalised": {"repetition_penalty": 1.5, "logit_bias": {4: 1.0}},
    "banned": {"suppress_tokens": (5, 6, 7, 8), "no_repeat_ngram_size": 1},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "penalised beams": {"num_beams": 2, "repetition_penalty": 1.5},
    "samples": {"do_sample": True, "seed": 1, "num_return_sequences": 3, "temperature": 1.5},
    "cut samples": {"do_sample": True, "seed": 2, "top_k": 2, "frequency_penalty": 0.5},
}


def request(*, stream: bool = False, **overrides: object) -> EngineRequest:
    rules = Generation.model_validate(
        {
            "decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
            "max_new_tokens": 8, "top_log_probs": 3, **overrides,
        }
    )  # fmt: skip
    return EngineRequest(rules, np.array([4, 5]), stream=stream)


def found(**overrides: object) -> tuple[Hypothesis, ...]:
    return decode(FakeRunner(LOGITS, LOG_PROBS_VOCABULARY), [request(**overrides)])[0].hypotheses


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_their_sums(way: str) -> None:
    for hypothesis in found(**WAYS[way]):
        assert len(hypothesis.log_probs) == len(hypothesis.top) == len(hypothesis.token_ids)
        mean = sum(hypothesis.log_probs) / len(hypothesis.token_ids)
        assert hypothesis.score == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_best_tokens_are_returned_per_position(way: str) -> None:
    """Three per position, best first, the chosen token among them if it ranks in the top three."""
    for hypothesis in found(**WAYS[way]):
        for token, log_prob, top in zip(
            hypothesis.token_ids, hypothesis.log_probs, hypothesis.top, strict=True
        ):
            values = [value for _, value in top]
            assert len(top) == 3
            assert values == sorted(values, reverse=True)
            assert dict(top).get(token, log_prob) == log_prob
            assert token in dict(top) or log_prob <= values[-1]


def test_they_are_of_the_penalised_distribution_before_temperature_and_truncation() -> None:
    overrides = {**WAYS["cut samples"], "temperature": 0.5, "top_log_probs": 20}
    (hypothesis,) = found(**overrides)
    for place in range(len(hypothesis.token_ids)):
        history = hypothesis.token_ids[:place]
        edit = edit_after(request(**overrides).rules, (0,), history)
        logits = LOGITS((4, 5), (0, *history))[None].copy()
        wanted = select_candidates(HostLogits(logits, rank), [CandidateRequest(20, edit)])
        ids, log_probs = zip(*hypothesis.top[place], strict=True)
        assert list(ids) == wanted.token_ids[0].tolist()
        assert log_probs == pytest.approx(wanted.log_probs[0].tolist(), rel=1e-5)


def test_forced_end_has_probability_one() -> None:
    (hypothesis,) = found(forced_eos_token_id=1, max_new_tokens=2, suppress_tokens=(1,))
    assert hypothesis.log_probs[-1] == 0
    assert hypothesis.top[-1] == ((1, 0.0),)


def test_log_probs_may_be_requested_without_best_tokens() -> None:
    (hypothesis,) = found(top_log_probs=0)
    assert hypothesis.log_probs
    assert all(not top for top in hypothesis.top)


def test_log_probs_are_absent_unless_requested() -> None:
    (hypothesis,) = found(top_log_probs=None)
    assert hypothesis.log_probs == hypothesis.top == ()


@pytest.mark.parametrize("way", ["greedy", "penalised", "cut samples"])
def test_pieces_carry_their_own(way: str) -> None:
    decoder = EngineCore(FakeRunner(LOGITS, LOG_PROBS_VOCABULARY), Capacity())
    [[*pieces, end]] = run_staggered(decoder, [request(stream=True, **WAYS[way])])
    assert isinstance(end, Finished)
    chunks = [piece for piece in pieces if isinstance(piece, TokenChunk)]
    assert all(len(piece.log_probs) == len(piece.token_ids) == 1 for piece in chunks)
    assert sum((piece.log_probs for piece in chunks), ()) == end.hypotheses[0].log_probs
    assert sum((piece.top for piece in chunks), ()) == end.hypotheses[0].top


def test_given_tokens_are_scored_without_best_ones_too() -> None:
    given = {"given_ids": (7, 9, 4), "max_new_tokens": 3}
    (wanted,), (alone,) = found(**given), found(**given, top_log_probs=0)
    assert alone.token_ids == (7, 9, 4)
    assert alone.log_probs == wanted.log_probs
    assert alone.top == ((), (), ())


VARIED = {"plain": (2, 3.5), "odd": (3, 1.0), "separate-tables": (7, 3.0)}
"""Configuration → seed and bias of the end token, so that ends are early, late or missing."""


@dataclasses.dataclass(frozen=True)
class Twin:
    theirs: MarianMTModel
    ours: OrtRunner
    rules: Generation

    def requests(self, beams: int, count: int = 24) -> list[EngineRequest]:
        rng = np.random.default_rng(beams)
        rules = self.rules.model_copy(update={"num_beams": beams, "num_return_sequences": beams})
        sources = [rng.integers(1, 49, rng.integers(1, 25)) for _ in range(count)]
        return [EngineRequest(rules, source_ids=source) for source in sources]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(n, marks=() if n == "separate-tables" else pytest.mark.full) for n in VARIED
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MarianMTModel, Bundle]:
    folder = tmp_path_factory.mktemp("twin")
    theirs = make_twin("marian", request.param, folder)
    assert isinstance(theirs, MarianMTModel)
    seed, end_bias = VARIED[request.param]
    randomise(theirs, seed)
    with torch.no_grad():
        theirs.final_logits_bias[0, 0] += end_bias
    theirs.save_pretrained(folder)
    return theirs, exported(folder)


@pytest.fixture
def twin(checkpoint: tuple[MarianMTModel, Bundle], device: Device) -> Iterator[Twin]:
    theirs, bundle = checkpoint
    runner = OrtRunner(bundle, threads=1, device=device)
    start = theirs.config.decoder_start_token_id
    rules = Generation(
        decoder_start_ids=(start,),
        eos_token_ids=(0,),
        pad_token_id=start,
        max_new_tokens=20,
        bad_words_ids=((start,),),
        forced_eos_token_id=0,
    )
    yield Twin(theirs, runner, rules)
    runner.close()


def exported(checkpoint_folder: Path) -> Bundle:
    """The graphs that generation runs, and a manifest of them; `align` is tested elsewhere."""
    model = SourceModel.open(checkpoint_folder)
    graphs = model.graphs()
    lowerings = {key: one for key, one in graphs.lowerings.items() if key != "align"}
    folder = checkpoint_folder / "bundle"
    folder.mkdir()
    for lowering in lowerings.values():
        to_onnx(lowering, folder / lowering.graph.file)
    described = {key: lowering.graph for key, lowering in lowerings.items()}
    size = model.configuration.vocabulary_size
    fields = {"states": graphs.states, "limits": Limits(), "vocabulary_size": size}
    manifest = make_manifest("twin", "translate", described, **fields)
    return Bundle(folder, manifest)


def generated_by_theirs(twin: Twin, request: EngineRequest) -> list[tuple[list[int], float]]:
    """(tokens, score) of each sequence that `transformers.generate` returns."""
    rules = request.rules
    with torch.inference_mode():
        output = twin.theirs.generate(
            torch.from_numpy(request.source_ids)[None],
            num_beams=rules.num_beams, num_return_sequences=rules.num_return_sequences,
            max_new_tokens=rules.max_new_tokens, bad_words_ids=[[rules.pad_token_id]],
            forced_eos_token_id=rules.forced_eos_token_id, do_sample=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    sequences = [tokens[: tokens.index(0) + 1] for tokens in output.sequences[:, 1:].tolist()]
    if rules.num_beams > 1:
        return list(zip(sequences, output.sequences_scores.tolist(), strict=True))
    scores = [logits.log_softmax(-1)[0] for logits in output.scores]
    total = sum(float(row[token]) for row, token in zip(scores, sequences[0], strict=True))
    return [(sequences[0], total / len(sequences[0]))]


def staggered(twin: Twin, requests: list[EngineRequest]) -> list[Finished]:
    return list(map(final_result, run_staggered(EngineCore(twin.ours, Capacity()), requests)))


def tokens(finished: Finished) -> list[list[int]]:
    return [list(hypothesis.token_ids) for hypothesis in finished.hypotheses]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_batched_tokens_and_scores_are_those_of_generate(twin: Twin, beams: int) -> None:
    requests = twin.requests(beams)
    answers = decode(twin.ours, requests)
    for request, found in zip(requests, answers, strict=True):
        wanted = generated_by_theirs(twin, request)
        assert tokens(found) == [sequence for sequence, _ in wanted]
        scores = [score for _, score in wanted]
        if beams > 1:  # greedy scores of `transformers` include the bans, ours do not
            assert [h.score for h in found.hypotheses] == pytest.approx(scores, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_do_not_depend_on_the_batch_or_the_time_of_admission(twin: Twin, beams: int) -> None:
    requests = twin.requests(beams)
    together = [tokens(found) for found in decode(twin.ours, requests)]
    alone = [tokens(decode(twin.ours, [request])[0]) for request in requests]
    joining = [tokens(found) for found in staggered(twin, requests)]
    assert together == alone == joining


@pytest.mark.slow
def test_tokens_do_not_depend_on_other_widths_in_the_engine(twin: Twin) -> None:
    mixed = [*twin.requests(1, 6), *twin.requests(4, 6), *twin.requests(2, 6)]
    assert [tokens(found) for found in staggered(twin, mixed)] == [
        tokens(decode(twin.ours, [request])[0]) for request in mixed
    ]


@pytest.mark.slow
def test_twin_exercises_the_search(twin: Twin) -> None:
    lengths = {len(tokens(found)[0]) for found in decode(twin.ours, twin.requests(1))}
    assert len(lengths) > 3
