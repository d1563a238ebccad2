"""A process with models in OpenVINO receives signals, whatever was released before."""

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


def test_signals_reach_a_process_that_released_its_models(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "negate", ports[:1], ports[1:]
    )
    file = tmp_path / "negate.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
    ended = subprocess.run(
        [sys.executable, "-c", RELEASE_TWO_MODELS, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "received\n"), ended.stderr
