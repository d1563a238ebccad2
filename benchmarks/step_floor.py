"""Time of a small generator's greedy step, beside as many operators that compute nothing.

`python -m benchmarks.step_floor MODEL` prints microseconds a step for both runtimes, the median of
many steps, with one thread. MODEL is a translator of `benchmarks.speed`; `benchmarks.engine_loop`
has the loop without a model.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import openvino
import typer
from onnx import TensorProto, helper
from openvino import opset13 as ops

from benchmarks.speed.checkpoints import bundle
from export.precision import Runtime
from inference.bundle.manifest import Bundle
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import CandidateRequest, GreedyRule
from inference.engine.runners.openvino.paged_graph import paged_graph
from inference.engine.runners.openvino.token_choice import add_token_choice
from inference.engine.runners.ort.sessions import session_options
from inference.engine.runners.protocol import Prompt, Runner
from inference.engine.state.group_state import BufferShape

CACHE = Path(__file__).parent / ".cache"
ROWS = (1, 8, 32)
SOURCE, STEPS = 12, 16
_NOTHING = ("Input", "Output", "Const")


def median_us(call: Callable[[], object], count: int) -> float:
    """Median microseconds of calls, after a third as many that do not count."""
    times_s = []
    for _ in range(count + count // 3):
        start_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start_s)
    return 1e6 * statistics.median(times_s[count // 3 :])


def count_onnx_operators(found: Bundle) -> int:
    """Operators of `step` as ONNX Runtime runs it."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(1)
        options.optimized_model_filepath = str(Path(folder) / "step.onnx")
        options.log_severity_level = 3
        path = found.path(found.manifest.graphs["step"].file)
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath).graph.node)


def onnx_floor_us(operators: int, rows: int) -> float:
    """A run of so many operators, each on one number a row."""
    nodes = [helper.make_node("Abs", [f"x{i}"], [f"x{i + 1}"]) for i in range(operators)]
    first, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 1])
        for name in ("x0", f"x{operators}")
    )
    graph = helper.make_graph(nodes, "floor", [first], [last])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x0", np.ones((rows, 1), np.float32))
    binding.bind_output(f"x{operators}")
    return median_us(lambda: session.run_with_iobinding(binding), 300)


def openvino_floor_us(operators: int, rows: int) -> float:
    """The same with OpenVINO, of operators that it does not join."""
    value = first = ops.parameter([-1, 1], np.float32)
    for _ in range(operators):
        value = ops.softmax(value, -1)
    compiled = _compile(openvino.Model([value], [first], "floor"))
    assert _count_operators(compiled) == operators
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(np.ones((rows, 1), np.float32)))
    return median_us(request.infer, 300)


def count_openvino_operators(found: Bundle) -> int:
    """Operators of `step` with the choice of tokens, as OpenVINO runs it."""
    manifest = found.manifest
    read = openvino.Core().read_model(found.path(manifest.graphs["step"].file))
    assert manifest.vocabulary_size is not None
    return _count_operators(
        _compile(add_token_choice(paged_graph(read, manifest), manifest.vocabulary_size))
    )


def _count_operators(compiled: Any) -> int:
    kinds = [op.get_rt_info()["layerType"] for op in compiled.get_runtime_model().get_ops()]
    return sum(kind.astype(str) not in _NOTHING for kind in kinds)


def _compile(model: openvino.Model) -> Any:
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(model, "CPU", options)


def step_us(runner: Runner, rows: int) -> float:
    """A greedy step of so many sequences, of several in a call where the runner has that."""
    group, ids = runner.group(1), np.full(rows, 7)
    random = np.random.default_rng(0)
    group.reserve(BufferShape.holding(rows, 6 * STEPS, SOURCE), rows)
    sources = [random.integers(2, 1000, SOURCE) for _ in range(rows)]
    group.admit_deferred([Prompt(np.array([2]), source) for source in sources])
    if not runner.capabilities.greedy_steps:
        requests = [CandidateRequest(1)] * rows
        return median_us(lambda: group.step(ids, requests), 2 * STEPS)
    times_us = []
    for _ in range(6):
        start_s = time.perf_counter()
        taken = group.step_greedily(ids, GreedyRule(), STEPS, frozenset()).token_ids.shape[1]
        times_us.append(1e6 * (time.perf_counter() - start_s) / taken)
    return statistics.median(times_us[1:])


RUNTIMES = {
    Runtime.ONNXRUNTIME: (count_onnx_operators, onnx_floor_us),
    Runtime.OPENVINO: (count_openvino_operators, openvino_floor_us),
}


def main(
    model: Annotated[str, typer.Argument()] = "example-es-en",
    precision: Annotated[str, typer.Option()] = "int8",
) -> None:
    """Print microseconds a step."""
    typer.echo("| runtime | operators | as many that compute nothing | step |\n|---|---|---|---|")
    for runtime in RUNTIMES:
        found = bundle(model, precision, CACHE, runtime)
        runner = make_runner(found, threads=1)
        count_operators, floor_us = RUNTIMES[runtime]
        count = count_operators(found)
        cells = [
            " / ".join(f"{measure(rows):.0f}" for rows in ROWS)
            for measure in (partial(floor_us, count), partial(step_us, runner))
        ]
        typer.echo(f"| {runtime} | {count} | {' | '.join(cells)} |")
        runner.close()


if __name__ == "__main__":
    typer.run(main)
