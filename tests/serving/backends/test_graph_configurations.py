"""Configurations of graphs: what is refused when a model loads, and what is accepted.

`test_onnxruntime` has one refusal through Triton; here the sessions are opened in this process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from inference import process_limits
from inference.saturation import open_cpu_session
from inference.stateless.graph_sessions import GraphSessions
from inference.stateless.sessions import InvalidArgument, graph_file
from serving.model_config import as_loaded, read_config
from tests.inference.tiny_models import parse_graph, publish
from tests.serving.backends.test_onnxruntime import SUMS, config, floats, parameter, sums, tensor


def opened(folder: Path, name: str, model: onnx.ModelProto, configuration: str) -> GraphSessions:
    """As the backend opens a model that Triton loads."""
    publish(folder, name, model, configuration)
    loaded = as_loaded(read_config(folder / name, 1)) | {"name": name}
    return GraphSessions(graph_file(folder / name / "1", loaded), loaded)


def test_threads_are_no_more_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(sums(), tmp_path / "model.onnx")

    def threads(count: int) -> int:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count
        session = open_cpu_session(tmp_path / "model.onnx", options)
        return int(session.get_session_options().intra_op_num_threads)

    monkeypatch.setattr(process_limits, "usable_cores", lambda: 3)
    assert [threads(count) for count in (2, 3, 16)] == [2, 3, 3]
    assert 1 <= threads(0) <= 3, "ONNX Runtime would take all cores of the machine"


X, DOUBLE, SQUARE = SUMS
REFUSED: dict[str, tuple[str, str]] = {
    "unknown_input": (
        config(tensor("input", "z", "FP32", "[-1]"), DOUBLE, max_batch_size=8),
        "unexpected inference input 'z', allowed inputs are: x",
    ),
    "unknown_output": (
        config(X, tensor("output", "cube", "FP32", "[-1]"), max_batch_size=8),
        "unexpected inference output 'cube', allowed outputs are: double, square",
    ),
    "further_input": (
        config(X, tensor("input", "y", "FP32", "[-1]"), DOUBLE, max_batch_size=8),
        "unable to load model 'further_input', configuration expects 2 inputs, model provides 1",
    ),
    "wrong_type": (
        config(tensor("input", "x", "INT32", "[-1]"), DOUBLE, max_batch_size=8),
        "configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32",
    ),
    "wrong_rank": (
        config(tensor("input", "x", "FP32", "[-1, 2]"), DOUBLE, max_batch_size=8),
        "tensor 'x': the model expects 2 dimensions (shape [-1,-1]) but the model configuration "
        "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by "
        "the explicit tensor shape, making complete shape [-1,-1,2])",
    ),
    "fixed_output": (
        config(X, tensor("output", "double", "FP32", "[7]"), max_batch_size=8),
        "tensor 'double': the model expects 2 dimensions (shape [-1,-1]) but",
    ),
    "execution_mode": (
        config(*SUMS, max_batch_size=8, more=parameter("execution_mode", "2")),
        "Expected values for execution_mode are 0 or 1 but got 2.",
    ),
    "threads": (
        config(*SUMS, max_batch_size=8, more=parameter("inter_op_thread_count", "many")),
        "failed to convert 'many' to integral number",
    ),
    "arena": (
        config(*SUMS, max_batch_size=8, more=parameter("enable_mem_arena", "perhaps")),
        "failed to convert 'perhaps' to boolean",
    ),
    "pattern": (
        config(*SUMS, max_batch_size=8, more=parameter("enable_mem_pattern", "2")),
        "failed to convert '2' to boolean",
    ),
    "optional": (
        config(tensor("input", "x", "FP32", "[-1]", "optional: true"), DOUBLE, max_batch_size=8),
        "optional input 'x' is not supported for models that support batching",
    ),
    "accelerator": (
        config(
            *SUMS,
            max_batch_size=8,
            more="optimization {execution_accelerators {"
            "cpu_execution_accelerator: [{name: 'warp'}]}}",
        ),
        "unknown Execution Accelerator 'warp' is requested",
    ),
    "ragged": (
        config(
            tensor("input", "x", "FP32", "[-1]", "allow_ragged_batch: true"),
            DOUBLE,
            max_batch_size=4,
        ),
        "configuration expects model provides input with shape [-1] for ragged input 'x', model "
        "provides [-1,-1]",
    ),
    "missing_file": (
        config(*SUMS, max_batch_size=8, more="default_model_filename: 'other.onnx'"),
        "other.onnx' for model instance 'missing_file'",
    ),
}
"""What the native backend refuses too: a configuration and a part of the reason."""


@pytest.mark.parametrize("name", REFUSED)
def test_configuration_is_refused(name: str, tmp_path: Path) -> None:
    configuration, reason = REFUSED[name]
    with pytest.raises(InvalidArgument) as refused:
        opened(tmp_path, name, sums(), configuration)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("execution_mode", "1"),
        ("enable_mem_arena", "off"),
        ("enable_mem_pattern", "True"),
        ("inter_op_thread_count", "2"),
        ("anything_else", "?"),
    ],
)
def test_parameters_of_the_native_backend_are_accepted(
    name: str, value: str, tmp_path: Path
) -> None:
    more = parameter(name, value)
    sessions = opened(tmp_path, "sums", sums(), config(*SUMS, max_batch_size=8, more=more))
    x = floats([1, 2])
    np.testing.assert_array_equal(sessions.run(["double"], {"x": x})["double"], x + x)


def test_fixed_first_dimension_cannot_be_batched(tmp_path: Path) -> None:
    fixed = parse_graph("(float[2, 2] x) => (float[2, 2] y) { y = Identity(x) }")
    tensors = (tensor("input", "x", "FP32", "[2]"), tensor("output", "y", "FP32", "[2]"))
    with pytest.raises(InvalidArgument, match=r"first dimension must be -1.*the model is \[2,2\]"):
        opened(tmp_path, "fixed", fixed, config(*tensors, max_batch_size=2))
