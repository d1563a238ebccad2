"""Models that multiply, and a look at the server that has them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from serving.liveness.stall_detector import EngineStats
from serving.settings.triton_settings import TritonSettings
from serving.triton.runtime_files import SHARED_MEMORY
from serving.triton.server import TritonServer
from serving.triton.stubs import running_stubs
from tests.inference.tiny_models import parse_graph, publish

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [{name: "x" data_type: TYPE_FP32 dims: [1]}]
output [{name: "y" data_type: TYPE_FP32 dims: [1]}]
instance_group [{kind: KIND_CPU count: 1}]
parameters {key: "intra_op_thread_count" value {string_value: "1"}}
"""


def settings(repository: Path, **changes: Any) -> TritonSettings:
    """Settings of a server on free ports."""
    return TritonSettings(repository=repository, **{"grpc_port": 0, "metrics_port": 0} | changes)


def times(factor: float) -> Any:
    """The graph y = factor · x."""
    text = "(float[B, 1] x) => (float[B, 1] y) { y = Mul(x, factor) }"
    return parse_graph(text, {"factor": np.array([factor], np.float32)})


def publish_times(repository: Path, name: str, factor: float, **options: Any) -> Path:
    return publish(repository, name, times(factor), CONFIG, **options)


@contextmanager
def brief_server(
    chosen: TritonSettings, *callbacks: Callable[[str], None]
) -> Iterator[TritonServer]:
    """A server that ends with the block: Triton looks once a second whether it may exit."""
    with TritonServer(chosen, *callbacks) as server:
        try:
            yield server
        finally:
            server.stop(at_once=True)


def http(server: TritonServer) -> httpx.Client:
    """A client of the server's HTTP endpoints."""
    transport = httpx.HTTPTransport(uds=str(server.http_socket), verify=False)
    return httpx.Client(transport=transport, base_url="http://triton", timeout=30)


def answer(server: TritonServer, model: str, version: int | None = None) -> float:
    """What the model makes of 1; without a version, the newest that is loaded."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    which = "" if version is None else f"/versions/{version}"
    with http(server) as client:
        reply = client.post(f"/v2/models/{model}{which}/infer", json=body).raise_for_status().json()
    return float(reply["outputs"][0]["data"][0])


def incarnation(server: TritonServer, model: str) -> str:
    """How often the model was healed, as a client of Triton can read it."""
    with http(server) as client:
        config = client.get(f"/v2/models/{model}/config").raise_for_status().json()
    parameters = config["parameters"]
    return str(parameters["incarnation"]["string_value"])


def living_stubs(server: int) -> dict[str, set[int]]:
    """The running stubs of a server, by model."""
    found: dict[str, set[int]] = {}
    for (model, _), pids in running_stubs(server).items():
        found.setdefault(model, set()).update(pids)
    return found


def wait_until(claim: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def runtime_files(server: int) -> Callable[[], list[Path]]:
    """A function that lists a server's files outside its repository, also after its end."""
    arguments = Path(f"/proc/{server}/cmdline").read_text().split("\0")
    prefix = next(a.split("=")[-1] for a in arguments if "shm-region-prefix-name" in a)
    folders = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    return lambda: [path for folder in folders for path in folder.glob(f"{prefix}*")]


def engine_stats(beats: int, rows: int = 0) -> EngineStats:
    return EngineStats(0, {7: {"beats": beats, "rows_in_use": rows}})
