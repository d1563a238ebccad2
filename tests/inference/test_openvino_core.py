"""A process with models in OpenVINO receives signals and errors, on one core too."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

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
