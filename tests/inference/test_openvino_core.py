"""Models in OpenVINO: signals, errors, and precisions that a processor computes otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from inference.engine.runners.openvino.runner import PagedRunner
from inference.errors import BundleError
from inference.openvino_core import scales_activations, why_not_here
from inference.saturation import products_saturate
from inference.stateless.compiled_graphs import CompiledGraphs
from inference.stateless.sessions import InvalidArgument
from tests.inference.engine.toy_bundles import for_openvino, language_bundle

RELEASE_TWO_MODELS = """
import os, signal, sys
from pathlib import Path
from inference.stateless.compiled_graphs import CompiledGraphs

names = [{"name": "x"}], [{"name": "y"}]
config = {"name": "negate", "input": names[0], "output": names[1]}
models = [CompiledGraphs(Path(sys.argv[1]), config) for _ in range(2)]
while models:
    del models[0]
signal.signal(signal.SIGTERM, lambda *_: print("received"))
os.kill(os.getpid(), signal.SIGTERM)
"""

FAIL_ON_ONE_CORE = """
import os, sys
from pathlib import Path
import numpy as np
from inference.stateless.compiled_graphs import CompiledGraphs

os.sched_setaffinity(0, {int(sys.argv[2])})
ports = [{"name": "x"}, {"name": "y"}], [{"name": "z"}]
parameters = {"intra_op_thread_count": {"string_value": "2"}}
config = {"name": "add", "input": ports[0], "output": ports[1], "parameters": parameters}
model = CompiledGraphs(Path(sys.argv[1]), config)
for count in (2, 3, 2):
    feed = {"x": np.ones(2, np.float32), "y": np.full(count, count, np.float32)}
    try:
        print(model.run(["z"], feed)["z"].tolist())
    except RuntimeError:
        print("error")
"""


def test_signals_reach_a_process_that_released_its_models(tmp_path: Path) -> None:
    file = _saved(tmp_path, "Neg", ["x"], "y")
    assert _output(RELEASE_TWO_MODELS, file) == "received\n"


def test_a_run_that_fails_on_one_core_does_not_return_the_last_results(tmp_path: Path) -> None:
    file = _saved(tmp_path, "Add", ["x", "y"], "z")
    found = _output(FAIL_ON_ONE_CORE, file, str(min(os.sched_getaffinity(0))))
    assert found == "[3.0, 3.0]\nerror\n[3.0, 3.0]\n"


def _saved(folder: Path, operator: str, inputs: list[str], output: str) -> Path:
    """A model of one operator on vectors of any length."""
    ports = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"N_{name}"])
        for name in (*inputs, output)
    }
    node = helper.make_node(operator, inputs, [output])
    graph = helper.make_graph([node], "model", [ports[name] for name in inputs], [ports[output]])
    file = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
    return file


def _output(program: str, *arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_activations_are_rounded_where_products_of_bytes_are_exact() -> None:
    """Both need VNNI."""
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 has VNNI")
    assert scales_activations() != products_saturate()


@pytest.fixture
def other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without VNNI and bfloat16."""
    monkeypatch.setattr("inference.openvino_core.has_bf16", lambda: False)
    monkeypatch.setattr("inference.openvino_core.scales_activations", lambda: False)


@pytest.mark.usefixtures("other_processor")
@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        ("int8", "no VNNI, .*; export with --runtime onnxruntime --precision int8, or serve it"),
        ("int4", "no VNNI, .*; export with --runtime onnxruntime --precision int8, or serve it"),
        ("bf16", "no bfloat16, .*; export with --precision fp32, or serve it"),
    ],
)
def test_generators_that_would_answer_otherwise_are_not_loaded(
    precision: str, reason: str, tmp_path: Path
) -> None:
    bundle = for_openvino(language_bundle(tmp_path), precision=precision)
    with pytest.raises(BundleError, match=f"in {precision} with OpenVINO here: .* {reason}"):
        PagedRunner(bundle, 2)


@pytest.mark.usefixtures("other_processor")
def test_bf16_of_a_stateless_graph_is_not_loaded_either(tmp_path: Path) -> None:
    config = {
        "name": "negate",
        "input": [{"name": "x"}],
        "output": [{"name": "y"}],
        "parameters": {"inference_precision": {"string_value": "bf16"}},
    }
    with pytest.raises(InvalidArgument, match="export with --precision fp32 or int8, or serve it"):
        CompiledGraphs(_negation(tmp_path), config)


@pytest.mark.usefixtures("other_processor")
def test_fp32_and_stateless_int8_need_nothing() -> None:
    assert why_not_here("fp32", is_generator=True) is None
    assert why_not_here("int8", is_generator=False) is None


def _negation(folder: Path) -> Path:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "negate", ports[:1], ports[1:]
    )
    file = folder / "negate.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
    return file
