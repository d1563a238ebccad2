"""Parts of graphs: ranking, sampling, attention to sources, rotations, images of prompts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as ops

from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, Event
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.openvino.paged_graph import fuse_rotations, replace_cross_attention
from inference.engine.runners.openvino.prompt_images import ImageRows
from inference.engine.runners.ort.logits_graphs import TopK, block_size, topk_graph
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice, session_options
from inference.engine.scheduler import Capacity
from inference.engine.search import sampling
from inference.engine.state.device import Device
from inference.generation import Finished, Generation
from inference.openvino_core import openvino_core
from tests.inference.engine.fake_runner import FakeRunner, run_staggered, streamed_ids
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_logits,
    recurrent_bundle,
)
from tests.inference.tiny_models import parse_graph

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
    assert [tuple(streamed_ids(events)) for events in streams] == wanted


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


HEADS, WIDTH = 2, 64
RANDOM = np.random.default_rng(7)
SCALES = [None, 0.5]


def attention(scale: float | None) -> Any:
    """An infer request of query (B, H, W, K), key and value (B, H, S, K), bias (B, 1, W, S)."""
    shapes = [[-1, HEADS, -1, WIDTH]] * 3 + [[-1, 1, -1, -1]]
    inputs = [ops.parameter(shape, np.float32) for shape in shapes]
    given = [] if scale is None else [ops.constant(np.float32(scale))]
    attended = ops.scaled_dot_product_attention(*inputs, *given)
    model = openvino.Model([attended], inputs)
    replace_cross_attention(model)
    assert "ScaledDotProductAttention" not in {op.get_type_name() for op in model.get_ops()}
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options).create_infer_request()


def run(request: Any, *arrays: NDArray[np.float32]) -> NDArray[np.float32]:
    request.infer(list(arrays))
    found: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
    return found


def arrays(sequences: int, rows: int, places: int) -> list[NDArray[np.float32]]:
    """Queries, keys, values, and biases that hide all but some positions of each source."""
    sizes = [(sequences, HEADS, count, WIDTH) for count in (rows, places, places)]
    lengths = 1 + np.arange(sequences) * 5 % places
    is_hidden = np.arange(places) >= lengths[:, None]
    bias = np.where(is_hidden, -np.inf, 0).astype(np.float32)[:, None, None]
    drawn = [RANDOM.standard_normal(size, dtype=np.float32) for size in sizes]
    return [*drawn, np.repeat(bias, rows, 2)]


@pytest.mark.parametrize("scale", SCALES)
def test_attention_to_sources_follows_its_equation(scale: float | None) -> None:
    query, key, value, bias = given = arrays(3, 2, 20)
    scores = (query.astype(np.float64) @ key.swapaxes(2, 3)) * (scale or WIDTH**-0.5) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    assert np.abs(run(attention(scale), *given) - wanted).max() < 1e-5


def layers_from_onnx() -> openvino.Model:
    """Two layers of ONNX Runtime's MultiHeadAttention of one query to sources with lengths."""
    query = f"float[B, W, {HEADS * WIDTH}]"
    held = [f"float[B, {HEADS}, S, {WIDTH}] {n}" for n in ("key0", "value0", "key1", "value1")]
    attends = f"com.microsoft.MultiHeadAttention <num_heads = {HEADS}>"
    model = parse_graph(
        f"""({query} query, {", ".join(held)}, int32[B] lengths) => ({query} found) {{
            between = {attends} (query, key0, value0, "", lengths)
            found = {attends} (between, key1, value1, "", lengths)
        }}""",
        opset=20,
    )
    return openvino_core().read_model(model.SerializeToString())


@pytest.mark.parametrize("rows", [1, 3])
def test_layers_share_the_mask_of_their_sources(rows: int) -> None:
    query, key, value, _ = arrays(4, rows, 20)
    given = [query.swapaxes(1, 2).reshape(4, rows, -1), key, value, value, key]
    lengths = np.array([20, 1, 7, 13], np.int32)
    found, masks = [], []
    for replaces in (False, True):
        model = layers_from_onnx()
        if replaces:
            replace_cross_attention(model)
        masks.append(sum(op.get_type_name() == "Range" for op in model.get_ordered_ops()))
        options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino_core().compile_model(model, "CPU", options).create_infer_request()
        request.infer([*given, lengths])
        found.append(request.get_output_tensor(0).data.copy())
    assert masks == [2, 1]
    assert np.abs(found[0] - found[1]).max() < 1e-5
    assert np.abs(found[1]).max() > 0.1


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_a_rows_attention_does_not_depend_on_rows_or_sequences_beside_it(rows: int) -> None:
    request, given = attention(None), arrays(5, rows, 48)
    together = run(request, *given)
    for sequence in range(5):
        query, key, value, bias = (each[sequence : sequence + 1].copy() for each in given)
        for row in range(rows):
            one = slice(row, row + 1)
            alone = run(request, query[:, :, one].copy(), key, value, bias[:, :, one].copy())
            assert np.array_equal(alone[0, :, 0], together[sequence, :, row])


ROTARY_FUSION_HEADS, ROTARY_FUSION_WIDTH, PLACES = 3, 16, 40
ROTARY_FUSION_RANDOM = np.random.default_rng(3)
TABLES = ROTARY_FUSION_RANDOM.standard_normal((2, PLACES, ROTARY_FUSION_WIDTH // 2), np.float32)


def rotation(x: Any, places: Any, *, swaps: bool = False) -> Any:
    """Of x (N, H, 1, w) at places (N,), as exported graphs have it."""
    axis, middle = ops.constant(np.int64(0)), ops.constant(np.array([1, 2]))
    cosine, sine = (
        ops.unsqueeze(ops.gather(ops.constant(table), places, axis), middle) for table in TABLES
    )
    first, second = ops.split(x, ops.constant(np.int64(3)), 2).outputs()
    one = ops.subtract(ops.multiply(first, cosine), ops.multiply(second, sine))
    pair = (first, second) if swaps else (second, first)
    other = ops.add(ops.multiply(pair[0], cosine), ops.multiply(pair[1], sine))
    return ops.concat([one, other], -1)


def compiled(*, swaps: bool = False) -> Any:
    """A graph of two rotations at the same places."""
    x = ops.parameter([-1, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH], np.float32)
    places = ops.parameter([-1], np.int64)
    turned = rotation(x, places, swaps=swaps)
    model = openvino.Model([turned, rotation(ops.relu(x), places)], [x, places])
    fuse_rotations(model)
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options)


def run_rotary_fusion(
    request: Any, x: NDArray[np.float32], places: NDArray[np.int64]
) -> NDArray[np.float32]:
    request.infer([x, places])
    found: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
    return found


def wanted(x: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float64]:
    cosine, sine = TABLES.astype(np.float64)[:, places, None, None]
    first, second = np.split(x, 2, axis=3)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=3)


def count(model: Any, kind: str) -> int:
    """Operators of a type that are run."""
    nodes = model.get_runtime_model().get_ops()
    return sum(node.get_rt_info()["layerType"] == kind for node in nodes)


def test_rotations_are_one_operator_and_follow_their_equation() -> None:
    model = compiled()
    assert count(model, "RoPE") == 2
    x = ROTARY_FUSION_RANDOM.standard_normal(
        (9, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH), np.float32
    )
    places = ROTARY_FUSION_RANDOM.integers(0, PLACES, 9)
    found = run_rotary_fusion(model.create_infer_request(), x, places)
    assert np.abs(found - wanted(x, places)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
def test_a_rows_bits_do_not_depend_on_rows_beside_it(rows: int) -> None:
    request = compiled().create_infer_request()
    x = ROTARY_FUSION_RANDOM.standard_normal(
        (rows, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH), np.float32
    )
    places = ROTARY_FUSION_RANDOM.integers(0, PLACES, rows)
    found = run_rotary_fusion(request, x, places)
    for row in range(rows):
        alone = run_rotary_fusion(request, x[row : row + 1], places[row : row + 1])
        assert np.array_equal(found[row : row + 1], alone)


def test_what_is_no_rotation_stays_as_it_is() -> None:
    assert count(compiled(swaps=True), "RoPE") == 1


TOKEN, NAME = 7, "vectors"


@given(
    is_image=st.lists(st.booleans(), min_size=1, max_size=30),
    given_rows=st.integers(0, 12),
    left_out=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_chunks_have_the_rows_of_their_image_tokens_in_order(
    is_image: list[bool], given_rows: int, left_out: int, cuts: list[int]
) -> None:
    ids = np.array([TOKEN if each else 3 for each in is_image])
    rows = np.arange(left_out, left_out + given_rows)[:, None]
    found = ImageRows(ids, TOKEN, {NAME: rows}, left_out)
    passed = np.cumsum(is_image)
    first = min(len(ids), int(np.searchsorted(passed, left_out)) + 1) if left_out else 0
    places = sorted({first, len(ids), *(max(first, min(cut, len(ids))) for cut in cuts)})
    for start, stop in pairwise(places):
        numbers = [int(passed[t]) - 1 for t in range(start, stop) if is_image[t]]
        wanted = [number for number in numbers if number < left_out + given_rows]
        assert found.of(start, stop)[NAME][:, 0].tolist() == wanted


def test_tokens_behind_an_image_are_shifted_by_it() -> None:
    """An image of three vectors that takes two positions, then one of two that takes one."""
    ids = np.array([3, TOKEN, TOKEN, TOKEN, 3, TOKEN, TOKEN, 3, TOKEN])
    places = np.zeros((5, 4), np.int64)
    places[0, 3] = places[3, 3] = -1
    places[:, 0] = np.arange(5)
    found = ImageRows(ids, TOKEN, {"places": places}, places="places")
    assert found.shifts(0, 9).tolist() == [0, -1, -1, -1, -1, -2, -2, -2, -2]
    assert found.shifts(4, 6).tolist() == [-1, -2]
    assert found.last_shift == -2
    assert found.of(2, 6)["places"].tolist() == [[n, 0, 0, 0] for n in (1, 2, 3)]
