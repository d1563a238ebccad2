"""Graphs that rank and sample tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.runners.ort.logits_graphs import TopK, block_size, topk_graph
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import session_options
from inference.engine.scheduler import Capacity
from inference.engine.search import sampling
from inference.engine.search.request import EngineRequest, Event
from inference.engine.state.device import Device
from inference.generation import Generation
from inference.sequences import Finished, TokenChunk
from tests.inference.engine.fake_runner import FakeRunner, run_staggered
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_logits,
    recurrent_bundle,
)

SHAPES = ((12, 5), (5, 12), (40, 3), (7, 1), (1, 9))  # (blocks, tokens of each)


@cache
def session(blocks: int, block: int, *, by_blocks: bool) -> onnxruntime.InferenceSession:
    graph = topk_graph(blocks * block, block if by_blocks else None, with_mass=True)
    return onnxruntime.InferenceSession(graph.SerializeToString(), session_options(threads=1))


def chosen(
    logits: np.ndarray, k: int, shape: tuple[int, int], *, by_blocks: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, log-probabilities, masses at temperature 0.5."""
    temperature = np.full((len(logits), 1), 0.5, np.float32)
    feeds = {"logits": logits, "k": np.array([k]), "temperature": temperature}
    ids, log_probs, best, masses = session(*shape, by_blocks=by_blocks).run(None, feeds)
    np.testing.assert_array_equal(best, np.take_along_axis(logits, ids, axis=1))
    return ids, log_probs, masses


@st.composite
def ties(draw: st.DrawFn) -> tuple[tuple[int, int], np.ndarray]:
    """Rows of a few distinct values, minus infinity among them."""
    shape = draw(st.sampled_from(SHAPES))
    values = draw(st.sampled_from([(0.0,), (0.0, 1.0), (-np.inf, 0.0), (-np.inf, -2.5, 0.5, 3.0)]))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    rows = rng.choice(values, (draw(st.integers(1, 5)), shape[0] * shape[1]))
    return shape, rows.astype(np.float32)


@given(rows=ties(), share=st.floats(0, 1), by_blocks=st.booleans())
def test_equal_scores_rank_in_vocabulary_order(
    rows: tuple[tuple[int, int], np.ndarray], share: float, by_blocks: bool
) -> None:
    shape, logits = rows
    k = 1 + round(share * ((shape[0] if by_blocks else logits.shape[1]) - 1))
    ids, log_probs, _ = chosen(logits, k, shape, by_blocks=by_blocks)
    assert ids.tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :k].tolist()
    alive = logits.max(axis=1) > -np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    wanted = np.take_along_axis(wanted, ids, axis=1)
    assert log_probs[alive] == pytest.approx(wanted[alive], abs=1e-5)
    assert np.isnan(log_probs[~alive]).all()


@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 9999), share=st.floats(0, 1))
def test_blocked_ranking_equals_the_whole_ranking(
    shape: tuple[int, int], seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(3, shape[0] * shape[1])) * 4).astype(np.float32)
    k = 1 + round(share * (shape[0] - 1))
    by_blocks = chosen(logits, k, shape, by_blocks=True)
    for one, other in zip(by_blocks, chosen(logits, k, shape, by_blocks=False), strict=True):
        assert one.tolist() == other.tolist()


def test_device_ranks_as_the_host_does() -> None:
    """The host ranks a large vocabulary by blocks, a device at once."""
    logits = np.random.default_rng(0).normal(size=(3, 9216)).astype(np.float32)
    device = HostDevice()
    tensor = device.view(device.allocate(logits.size, "float32"), logits.shape)
    device.upload(logits, tensor)
    options = onnxruntime.SessionOptions()
    there = TopK(options, 9216, device).rank(tensor, 4)
    here = TopK(options, 9216, CpuDevice()).rank(logits, 4)
    np.testing.assert_array_equal(there.token_ids, here.token_ids)
    np.testing.assert_allclose(there.log_probs, here.log_probs, atol=1e-6)


def test_nan_scores_still_rank_tokens() -> None:
    logits = np.full((2, 60), np.nan, np.float32)
    for by_blocks in (True, False):
        ids, log_probs, _ = chosen(logits, 4, (12, 5), by_blocks=by_blocks)
        assert ((ids >= 0) & (ids < 60)).all()
        assert np.isnan(log_probs).all()


@pytest.mark.parametrize("vocabulary_size", [1, 2, 9, 9216, 8209])  # one of blocks, one prime
def test_rank_returns_the_requested_count(vocabulary_size: int) -> None:
    topk = TopK(session_options(threads=1), vocabulary_size, CpuDevice())
    logits = np.random.default_rng(3).normal(size=(2, vocabulary_size)).astype(np.float32)
    temperatures = np.array([[0.3], [2.0]], np.float32)
    for k in {1, min(2, vocabulary_size), min(50, vocabulary_size), vocabulary_size}:
        plain_request, tempered = topk.rank(logits, k), topk.rank(logits, k, temperatures)
        _assert_ranked(plain_request, logits, k)
        _assert_ranked(tempered, logits, k)
        below = (logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
        assert plain_request.masses is None
        assert tempered.masses == pytest.approx(np.exp(below / temperatures).sum(axis=1), rel=1e-4)


def test_topk_graph_needs_no_newer_operators_than_a_native_triton_has() -> None:
    for block in (None, 5):
        model = topk_graph(60, block, with_mass=True)
        assert model.ir_version <= 10
        assert model.opset_import[0].version <= 20


def test_blocks_divide_the_vocabulary() -> None:
    for size in (58101, 50257, 32128, 250002):
        block = block_size(size)
        assert size % block == 0
        assert size // (2 * block) >= 16, "beams ask for a few candidates each"
    assert block_size(1814) is None, "small"
    assert block_size(8209) is None, "a prime number"


def _assert_ranked(found: Candidates, logits: np.ndarray, k: int) -> None:
    assert found.token_ids.tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :k].tolist()
    assert found.log_probs.shape == (len(logits), k)


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
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    device: Device,
    few_candidates: None,
) -> tuple[OrtRunner, bool]:
    """A runner, and whether it takes pixels."""
    build = attention_bundle if request.param == "attention" else recurrent_bundle
    runner = OrtRunner(build(tmp_path_factory.mktemp("toy")), threads=1, device=device)
    return runner, request.param == "recurrent"


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws from few candidates and from the whole vocabulary must agree."""
    monkeypatch.setattr(sampling, "DEFAULT_CANDIDATES", 6)


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


@pytest.mark.usefixtures("few_candidates")
def test_samples_are_those_of_the_equations(tmp_path: Path, device: Device) -> None:
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
