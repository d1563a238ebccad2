"""How far a decoding step is from what the machine could do, and where its time goes.

A step must read every weight once: at batch one that is the bound. The operators' shares are those
of ONNX Runtime's profiler.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.harness.system import THREADS
from inference.bundle.manifest import Bundle, Graph, Growth, Role, State
from inference.engine.runners.ort.sessions import session_options

CALLS = 30
PAST = 48
SOURCE = 32


def measure(found: Bundle, rows: int, bytes_per_second: float) -> dict[str, Any]:
    """One step of `rows` rows: bound, measured, and the operators' shares.

    Args:
        bytes_per_second: What this machine reads from memory.
    """
    path = found.path(found.manifest.graphs["step"].file)
    graph = found.manifest.graphs["step"]
    read = weight_bytes(path) + cache_bytes(found.manifest.states, rows)
    milliseconds = _timed(path, graph, rows, profile=None)
    with tempfile.TemporaryDirectory() as folder:
        _timed(path, graph, rows, profile=Path(folder) / "profile")
        shares = operator_shares(next(Path(folder).glob("profile*")))
    bound_ms = 1000 * read / bytes_per_second
    return {
        "model": found.manifest.name,
        "precision": found.manifest.precision,
        "rows": rows,
        "megabytes_read": round(read / 1e6, 1),
        "bound_ms": round(bound_ms, 2),
        "step_ms": round(milliseconds, 2),
        "of_roofline": round(bound_ms / milliseconds, 3),
        "operators": shares,
    }


def weight_bytes(path: Path) -> int:
    """Weights that a step multiplies with; of tables that are only looked up in, nothing."""
    model = onnx.load(str(path))
    turned = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Transpose"}
    products = ("MatMul", "Gemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
    read = {turned.get(n.input[1], n.input[1]) for n in model.graph.node if n.op_type in products}
    return sum(len(t.raw_data) for t in model.graph.initializer if t.name in read)


def cache_bytes(states: tuple[State, ...], rows: int) -> int:
    """Keys and values of `PAST` positions and `SOURCE` source positions, of all rows."""
    return sum(
        np.dtype(state.dtype).itemsize * int(np.prod(_shape(state.shape, rows)))
        for state in states
        if state.growth is not Growth.REPLACE
    )


def operator_shares(profile: Path) -> dict[str, float]:
    """Operator → its share of the kernels' time, each node by its median call."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in json.loads(profile.read_text(encoding="utf-8")):
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"], event["name"]].append(event["dur"])
    totals: dict[str, float] = defaultdict(float)
    for (operator, _), durations in spent.items():
        totals[operator] += median(durations)
    whole = sum(totals.values())
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return {operator: round(value / whole, 3) for operator, value in ranked[:8]}


def _timed(path: Path, graph: Graph, rows: int, profile: Path | None) -> float:
    """Median milliseconds of a bound call."""
    options = session_options(THREADS)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    session = onnxruntime.InferenceSession(
        str(path), options, disabled_optimizers=["SkipLayerNormFusion"]
    )
    binding, kept = session.io_binding(), _bound(graph, rows)
    for port in graph.inputs:
        array = kept[port.name]
        binding.bind_input(port.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for port in graph.outputs:
        array = kept.get(port.name.replace("present", "past"))
        array = np.zeros(_shape(port.shape, rows), np.float32) if array is None else array
        kept[port.name] = array
        binding.bind_output(port.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    seconds = []
    for _ in range(CALLS):
        before = time.perf_counter()
        session.run_with_iobinding(binding)
        seconds.append(time.perf_counter() - before)
    if profile is not None:
        session.end_profiling()
    return 1000 * median(seconds)


def _bound(graph: Graph, rows: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    controls: dict[Role, Any] = {
        Role.TOKENS: random.integers(2, 1000, (rows, 1)),
        Role.LENGTHS: np.full(rows, PAST, np.int32),
        Role.TOTAL: np.array(PAST, np.int32),
        Role.LAST: np.zeros(rows, np.int64),
        Role.SOURCE: np.full(rows, SOURCE, np.int32),
    }
    return {
        port.name: controls[port.role]
        if port.role in controls
        else random.normal(size=_shape(port.shape, rows)).astype(port.dtype)
        for port in graph.inputs
    }


def _shape(shape: tuple[int | str, ...], rows: int) -> list[int]:
    sizes = {"R": rows, "B": rows, "P": PAST, "S": SOURCE, "T": 1}
    return [sizes[size] if isinstance(size, str) else size for size in shape]
