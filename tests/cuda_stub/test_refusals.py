"""What is missing of a card is said in one line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from export.precision import Precision
from inference.engine.runner_factory import check_memory, make_runner
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.cuda.runtime import CudaRuntime, DeviceOutOfMemory
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.errors import BundleError, DeviceError
from inference.stateless.graph_sessions import GraphSessions
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.stub_library import Stub
from tests.inference.tiny_models import graph
from tests.programs import run_program

CHECK = """
from inference.engine.runners.cuda.device import CudaDevice
from inference.engine.runners.ort.sessions import session_options
from inference.engine.runners.ort.logits_graphs import TopK
from inference.errors import DeviceError
try:
    TopK(session_options(1), 32, CudaDevice())
except DeviceError as error:
    print("refused:", error.message)
"""


PORT = {"data_type": "TYPE_FP32", "dims": [1, 4, 4]}
CONFIG = {
    "name": "image",
    "max_batch_size": 4,
    "input": [{"name": "x", **PORT}],
    "output": [{"name": "y", **PORT}],
}
WARM_UP = f"""
import os
from pathlib import Path
from inference.stateless.graph_sessions import GraphSessions
from inference.errors import DeviceError
for file in os.environ["GRAPHS"].split(":"):
    sessions = GraphSessions(Path(file), {CONFIG}, card=0)
    try:
        sessions.warm_up()
        print("ran")
    except DeviceError as error:
        print("refused:", error.message)
"""


def doubling() -> onnx.ModelProto:
    return image_graph(helper.make_node("Add", ["x", "x"], ["y"]))


def convolution() -> onnx.ModelProto:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 3, 3], [1.0] * 9)
    return image_graph(helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), weights)


def image_graph(node: onnx.NodeProto, *weights: onnx.TensorProto) -> onnx.ModelProto:
    x, y = [(name, TensorProto.FLOAT, ["B", 1, 4, 4]) for name in ("x", "y")]
    return graph([node], [x], [y], list(weights))


def refused(program: str = CHECK, **environment: str) -> str:
    """What a process in this environment prints."""
    environment = {**os.environ, **environment}
    return run_program(sys.executable, "-c", program, env=environment).strip()


def test_no_card(stub: Stub) -> None:
    assert refused(CUDA_STUB_DEVICES="0") == "refused: CUDA finds no card: stub error 100"


def test_card_has_the_name_that_the_driver_gives_it(stub: Stub) -> None:
    assert CudaRuntime(0).name == "stub"


def test_no_card_of_that_number(stub: Stub, on_device: OnDevice) -> None:
    with pytest.raises(DeviceError, match="there is no card 3: CUDA finds 1, from 0 on"):
        make_runner(on_device("gpt2", Precision.FP16), "cuda:3")


def test_library_of_the_provider_is_missing(stub: Stub, tmp_path: Path) -> None:
    """ONNX Runtime runs on the CPU then, without an error."""
    for library in Path(os.environ["LD_LIBRARY_PATH"]).iterdir():
        if "cublasLt" not in library.name:
            shutil.copy(library, tmp_path)
    found = refused(LD_LIBRARY_PATH=str(tmp_path))
    assert "refused: ONNX Runtime cannot load CUDAExecutionProvider: libcublasLt.so.13" in found


def test_cudnn_is_missing_where_a_convolution_needs_it(stub: Stub, tmp_path: Path) -> None:
    """It is loaded at its first use: what needs none of it is served."""
    for library in Path(os.environ["LD_LIBRARY_PATH"]).iterdir():
        if "cudnn" not in library.name:
            shutil.copy(library, tmp_path)
    image, text = tmp_path / "image.onnx", tmp_path / "text.onnx"
    onnx.save(convolution(), image)
    onnx.save(doubling(), text)
    found = refused(WARM_UP, LD_LIBRARY_PATH=str(tmp_path), GRAPHS=f"{text}:{image}")
    assert found.splitlines() == [
        "ran",
        "refused: cuDNN is missing, which Conv needs on CUDA: "
        "pip install onnxruntime-gpu[cuda,cudnn]",
    ]


def test_convolution_runs_on_the_card(stub: Stub, tmp_path: Path) -> None:
    onnx.save(convolution(), tmp_path / "model.onnx")
    before = stub.read()
    GraphSessions(tmp_path / "model.onnx", CONFIG, card=0).warm_up()
    assert (stub.read() - before).launches > 0


def test_too_little_memory_for_the_rows(stub: Stub, on_device: OnDevice) -> None:
    bundle = on_device("gpt2", Precision.FP16)
    runner = make_runner(bundle, "cuda")
    check_memory(runner, bundle.manifest, Capacity(rows=64, prefix_bytes=0))
    each = runner.footprint.position * (bundle.manifest.limits.max_total_tokens or 0)
    with (
        stub.free_bytes(20 * each),
        pytest.raises(BundleError, match="max_rows 16 would fit"),
    ):
        check_memory(runner, bundle.manifest, Capacity(rows=64, prefix_bytes=0))
    runner.close()


def test_memory_that_is_gone_later_fails_newcomers(stub: Stub, on_device: OnDevice) -> None:
    runner = make_runner(on_device("gpt2", Precision.FP16), "cuda")
    group = runner.group(1)
    group.admit([Prompt(np.array([1, 2]))], [plain_request(1)])
    with stub.free_bytes(0), pytest.raises(DeviceOutOfMemory, match="MiB are needed, 0 of"):
        group.admit([Prompt(np.zeros(2000, np.int64))] * 64, [plain_request(1)] * 64)
    group.step(np.array([1]), [plain_request(1)])
    runner.close()


def test_stateless_graph_runs_on_the_card(stub: Stub, tmp_path: Path) -> None:
    model = graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["B", 2])],
        [("y", TensorProto.FLOAT, ["B", 2])],
    )
    onnx.save(model, tmp_path / "model.onnx")
    port = {"data_type": "TYPE_FP32", "dims": [2]}
    config = {
        "name": "sum", "max_batch_size": 4, "input": [{"name": "x", **port}],
        "output": [{"name": "y", **port}],
    }  # fmt: skip
    before = stub.read()
    sessions = GraphSessions(tmp_path / "model.onnx", config, card=0)
    sessions.run(["y"], {"x": np.zeros((2, 2), np.float32)})
    done = stub.read() - before
    assert done.launches == 1
    assert done.device_to_host == 1
