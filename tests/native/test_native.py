"""Triton's native onnxruntime backend serves the published repository as ours does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from export.parity.parity_inputs import Feeds, Probe, comparable, stateless_feeds
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Graph
from inference.bundle.reader import newest_bundle
from serving.triton.server import TritonServer
from tests.native.conftest import JOINED, PRECISIONS, STATELESS
from tests.serving.triton.tiny import http

pytestmark = [pytest.mark.full, pytest.mark.integration]

Servers = tuple[TritonServer, TritonServer]

TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3, "int8": 2e-2}
"""Of a largest value; another ONNX Runtime rounds elsewhere."""


def _ask(server: TritonServer, model: str, feeds: Feeds, outputs: list[str]) -> Feeds:
    """One request, as any client of KServe sends it; (B,) goes as (B, 1)."""
    inputs = []
    for name, value in feeds.items():
        value = value.reshape(-1, 1) if value.ndim == 1 else value
        port = triton.InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
        port.set_data_from_numpy(np.ascontiguousarray(value))
        inputs.append(port)
    wanted = [triton.InferRequestedOutput(name) for name in outputs]
    with triton.InferenceServerClient(server.grpc_address) as client:
        answer = client.infer(model, inputs, outputs=wanted, client_timeout=60)
    return {name: answer.as_numpy(name) for name in outputs}


def _feeds(bundle: Bundle, graph: Graph, count: int, length: int) -> Feeds:
    size = bundle.manifest.source_vocabulary_size or 1
    probe = Probe(size, size, framing=Framing.of(bundle))
    return stateless_feeds(graph, bundle.manifest, probe, count, length)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", STATELESS)
def test_outputs_are_equal(name: str, precision: str, servers: Servers, repository: Path) -> None:
    bundle = newest_bundle(repository, f"{name}-{precision}")
    size = bundle.manifest.source_vocabulary_size or 1
    for key, graph in bundle.manifest.graphs.items():
        model, outputs = bundle.manifest.parts[key], [port.name for port in graph.outputs]
        for count, length in ((1, 5), (3, 17), (8, 40)):
            feeds = _feeds(bundle, graph, count, length)
            native, ours = (_ask(server, model, feeds, outputs) for server in servers)
            native, ours = (comparable(graph, each, size) for each in (native, ours))
            for port in native:
                assert native[port].dtype == ours[port].dtype
                largest = np.abs(ours[port]).max() or 1.0
                difference = np.abs(native[port] - ours[port]).max() / largest
                assert difference <= TOLERANCE[precision], (port, count, length)


def _refused(call: Callable[[], Any]) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as refused:
        call()
    return refused.value.status(), refused.value.message()


MODEL = "example-bert-sentiment-fp32"
TOKENS = {
    "token_ids": np.ones((2, 4), np.int64),
    "lengths": np.full(2, 4, np.int32),
    "segments": np.zeros((2, 4), np.int64),
}
REFUSED: dict[str, tuple[str, Feeds, list[str]]] = {
    "type": (MODEL, TOKENS | {"token_ids": np.ones((2, 4), np.int32)}, ["logits"]),
    "shape": (MODEL, TOKENS | {"lengths": np.ones((2, 3), np.int32)}, ["logits"]),
    "rank": (MODEL, TOKENS | {"token_ids": np.ones((2, 4, 1), np.int64)}, ["logits"]),
    "rows that differ": (MODEL, TOKENS | {"lengths": np.ones(3, np.int32)}, ["logits"]),
    "missing input": (MODEL, {"token_ids": TOKENS["token_ids"]}, ["logits"]),
    "unknown input": (MODEL, TOKENS | {"other": np.ones((2, 4), np.int64)}, ["logits"]),
    "unknown output": (MODEL, TOKENS, ["other"]),
    "too many rows": (
        MODEL,
        {name: np.repeat(value, 33, axis=0) for name, value in TOKENS.items()},
        ["logits"],
    ),
    "unknown model": ("no-such-model", TOKENS, ["logits"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refusals_are_equal(fault: str, servers: Servers) -> None:
    model, feeds, outputs = REFUSED[fault]
    native, ours = (
        _refused(lambda server=server: _ask(server, model, feeds, outputs)) for server in servers
    )
    assert native == ours


def test_text_beyond_the_table_of_positions_is_refused_by_both(servers: Servers) -> None:
    """In the run, so each words it as it likes."""
    long = {
        "token_ids": np.ones((1, 400), np.int64),
        "lengths": np.full(1, 400, np.int32),
        "segments": np.zeros((1, 400), np.int64),
    }
    for server in servers:
        assert _refused(lambda server=server: _ask(server, MODEL, long, ["logits"]))
        assert _ask(server, MODEL, TOKENS, ["logits"])["logits"].shape == (2, 3)


def _executions(server: TritonServer, model: str) -> tuple[int, int, int]:
    """Requests, rows and executions of a model."""
    with http(server) as client:
        reply = client.get(f"/v2/models/{model}/stats").raise_for_status()
    (stats,) = reply.json()["model_stats"]
    return (
        stats["inference_stats"]["success"]["count"],
        stats["inference_count"],
        stats["execution_count"],
    )


def test_requests_of_equal_shape_are_joined_alike(servers: Servers) -> None:
    one = {name: value[:1] for name, value in TOKENS.items()}
    for server in servers:
        before = _executions(server, JOINED)
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(_ask, server, JOINED, one, ["logits"]) for _ in range(4)]
            together = [answer.result()["logits"] for answer in answers]
        assert tuple(np.subtract(_executions(server, JOINED), before)) == (4, 4, 1)
        for each in together:
            np.testing.assert_allclose(each, together[0], atol=1e-6)


def test_requests_of_other_shapes_are_not_joined(servers: Servers) -> None:
    """Why the gateway pads to buckets; four more rows end the wait."""
    short = {name: value[:1] for name, value in TOKENS.items()}
    long = {name: np.repeat(value, 2, axis=-1) for name, value in short.items()}
    long["lengths"] = short["lengths"] * 2
    mixed = [short, long] * 4
    for server in servers:
        before = _executions(server, JOINED)
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(_ask, server, JOINED, each, ["logits"]) for each in mixed]
            for call in calls:
                call.result()
        requests, rows, executions = np.subtract(_executions(server, JOINED), before)
        assert (requests, rows) == (8, 8)
        assert executions >= 2
