"""Products of bytes are exact whichever form their weights have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from inference import saturation
from inference.errors import SetupError
from inference.saturation import EXTERNAL_DATA, open_cpu_session

INPUTS, OUTPUTS = 96, 40
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.integers(-127, 128, (INPUTS, OUTPUTS)).astype(np.int8)
BYTES = RANDOM.integers(0, 256, (5, INPUTS)).astype(np.uint8)
EXACT = (BYTES.astype(np.int64) - 128) @ WEIGHT.astype(np.int64)


def _node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


def _product(weight: str, y: str) -> onnx.NodeProto:
    inputs = ["x", weight, "one", "ones", "zero"]
    return _node("MatMulIntegerToFloat", inputs, y, domain="com.microsoft")


def _model() -> onnx.ModelProto:
    """Products by a weight, by it again, by a table that tokens are looked up in, and the fast one.

    Its activations are integers from -128 to 127, whose scale is 1.
    """
    nodes = [
        _product("weight", "first"),
        _product("weight", "second"),
        _node("Transpose", ["table"], "turned", perm=[1, 0]),
        _product("turned", "third"),
        _node("Gather", ["table", "ids"], "rows"),
        _node("Cast", ["rows"], "looked_up", to=TensorProto.FLOAT),
        _node("Cast", ["x"], "floats", to=TensorProto.FLOAT),
        _node("Sub", ["floats", "shift"], "centred"),
        _node(
            "DynamicQuantizeMatMul",
            ["centred", "weight", "ones", "", "bias"],
            "fast",
            domain="com.microsoft",
        ),
    ]
    constants = {
        "weight": WEIGHT,
        "table": np.ascontiguousarray(WEIGHT.T),
        "one": np.float32(1),
        "ones": np.ones(OUTPUTS, np.float32),
        "zero": np.uint8(128),
        "shift": np.float32(128),
        "bias": np.arange(OUTPUTS, dtype=np.float32),
    }
    outputs = [(name, OUTPUTS) for name in ("first", "second", "third", "fast")]
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, ("rows", INPUTS)),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ("rows",)),
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ("rows", width))
            for name, width in (*outputs, ("looked_up", INPUTS))
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _run(session: onnxruntime.InferenceSession) -> dict[str, NDArray[np.float32]]:
    rows = BYTES.copy()
    rows[:, 0], rows[:, 1] = 0, 255  # the range that makes the scale of the fast product 1
    feeds = {"x": rows, "ids": np.arange(len(rows))}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _wanted() -> NDArray[np.int64]:
    rows = BYTES.astype(np.int64)
    rows[:, 0], rows[:, 1] = 0, 255
    return (rows - 128) @ WEIGHT.astype(np.int64)


@pytest.fixture(params=[False, True], ids=["as stored", "unsigned"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether weights are read as unsigned bytes, which is exact on every processor."""
    if not request.param and saturation.products_saturate():
        pytest.skip("products of signed weights saturate on this processor")
    monkeypatch.setattr(saturation, "products_saturate", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("source", ["bytes", "file", "weights beside the file"])
def test_products_are_exact_integers(form: bool, source: str, tmp_path: Path) -> None:
    model, path = _model(), tmp_path / "model.onnx"
    is_beside = source == "weights beside the file"
    onnx.save_model(
        model, path, save_as_external_data=is_beside, location="data", size_threshold=100
    )
    given = model.SerializeToString() if source == "bytes" else path
    found = _run(open_cpu_session(given, onnxruntime.SessionOptions()))
    for name in ("first", "second", "third"):
        np.testing.assert_array_equal(found[name], _wanted())
    np.testing.assert_array_equal(found["fast"], _wanted() + np.arange(OUTPUTS))
    np.testing.assert_array_equal(found["looked_up"], WEIGHT.T[: len(BYTES)])


def test_graph_of_bytes_finds_its_weights_in_the_folder_of_its_options(
    form: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(_model(), path, save_as_external_data=True, location="data", size_threshold=100)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXTERNAL_DATA, str(tmp_path))
    graph = onnx.load(path, load_external_data=False).SerializeToString()
    np.testing.assert_array_equal(_run(open_cpu_session(graph, options))["first"], _wanted())


def test_graph_without_products_of_bytes_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "products_saturate", lambda: True)
    graph = helper.make_graph(
        [_node("Neg", ["x"], "y")],
        "negated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("rows",))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows",))],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, ir_version=9), path)
    session = open_cpu_session(path, onnxruntime.SessionOptions())
    (found,) = session.run(None, {"x": np.ones(2, np.float32)})
    assert found.tolist() == [-1, -1]


def test_session_keeps_no_second_copy_of_its_weights(form: bool) -> None:
    session = open_cpu_session(_model().SerializeToString(), onnxruntime.SessionOptions())
    assert session._model_bytes is None
    np.testing.assert_array_equal(_run(session)["first"], _wanted())


def test_weights_that_no_message_can_hold_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> bytes:
        raise EncodeError("Failed to serialize proto")

    given = SimpleNamespace(graph=_model().graph, SerializeToString=fail)
    monkeypatch.setattr(saturation, "products_saturate", lambda: True)
    monkeypatch.setattr(onnx, "load_from_string", lambda content: given)
    with pytest.raises(SetupError, match=r"more than 2 GiB .* export with --precision fp32"):
        open_cpu_session(b"", onnxruntime.SessionOptions())
