"""The rewrite to float16 and bfloat16: types, islands of float32, and what the graphs compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.targets.cuda.gate import emulate
from export.targets.cuda.half_precision import halve
from export.targets.cuda.signature import value_types
from inference.errors import SetupError
from tests.export.targets.cuda.bundles import floats, node, save

LOW = pytest.mark.parametrize("low", ["float16", "bfloat16"])


def _types(path: Path) -> dict[str, str]:
    """Types of the values of a graph's outermost level."""
    model = onnx.load(path)
    return list(value_types(model.graph, 20))[-1][1]


def _run(path: Path, **feeds: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@LOW
def test_states_are_low_and_other_outputs_stay_float32(tmp_path: Path, low: str) -> None:
    path = save(
        tmp_path / "step.onnx",
        [
            node("MatMul", ["state", "w"], "new"),
            node("MatMul", ["new", "head"], "scores"),
            node("Add", ["scores", "bias"], "logits"),
        ],
        [("state", "float32", ["R", 8])],
        [("new", "float32", ["R", 8]), ("logits", "float32", ["R", 5])],
        {"w": floats(8, 8), "head": floats(8, 5, seed=1), "bias": floats(5, seed=2)},
    )
    done = halve(path, "step", low, {"state", "new"})
    types = _types(path)
    assert {types["state"], types["new"], types["scores"]} == {low}
    assert types["logits"] == "float32"
    assert (done.low, done.full, done.casts) == (2, 1, 1)
    weights = {tensor.data_type for tensor in onnx.load(path).graph.initializer}
    assert weights == {TensorProto.FLOAT, helper.np_dtype_to_tensor_dtype(_numpy(low))}


def _numpy(low: str) -> Any:
    element = TensorProto.FLOAT16 if low == "float16" else TensorProto.BFLOAT16
    return helper.tensor_dtype_to_np_dtype(element)


def test_pixels_are_normalised_in_float32(tmp_path: Path) -> None:
    path = save(
        tmp_path / "image.onnx",
        [
            node("Cast", ["pixels"], "numbers", to=TensorProto.FLOAT),
            node("Mul", ["numbers", "rescale"], "scaled"),
            node("Sub", ["scaled", "mean"], "centred"),
            node("Div", ["centred", "std"], "normalised"),
            node("Transpose", ["normalised"], "channels_first", perm=[0, 3, 1, 2]),
            node("Conv", ["channels_first", "w"], "patches"),
            node("Relu", ["patches"], "seen"),
            node("ReduceMean", ["seen", "places"], "embedding", keepdims=0),
        ],
        [("pixels", "uint8", ["B", 8, 8, 3])],
        [("embedding", "float32", ["B", 4])],
        {
            "rescale": np.float32(1 / 255),
            "mean": floats(3),
            "std": np.float32([0.2, 0.3, 0.4]),
            "w": floats(4, 3, 2, 2),
            "places": np.array([2, 3]),
        },
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    wanted = _run(path, pixels=pixels)["embedding"]
    halve(path, "image", "float16", set())
    types = _types(path)
    assert {types[name] for name in ("numbers", "centred", "channels_first")} == {"float32"}
    assert types["patches"] == types["seen"] == "float16"
    assert np.abs(_run(path, pixels=pixels)["embedding"] - wanted).max() < 2e-3


def _normalised(folder: Path) -> Path:
    """Rows of a product divided by their L2 norm, at least 1e-12."""
    return save(
        folder / "text.onnx",
        [
            node("MatMul", ["x", "w"], "projected"),
            node("ReduceL2", ["projected", "last"], "norm", keepdims=1),
            node("Clip", ["norm", "least"], "at_least"),
            node("Div", ["projected", "at_least"], "embedding"),
        ],
        [("x", "float32", ["B", 8])],
        [("embedding", "float32", ["B", 6])],
        {"w": floats(8, 6), "last": np.array([-1]), "least": np.float32(1e-12)},
    )


@LOW
def test_embeddings_are_normalised_in_float32(tmp_path: Path, low: str) -> None:
    path = _normalised(tmp_path)
    halve(path, "text", low, set())
    types = _types(path)
    assert types["projected"] == low
    assert types["norm"] == types["at_least"] == types["embedding"] == "float32"


def test_norms_beyond_float16_are_right(tmp_path: Path) -> None:
    """Squares of numbers above 256 do not fit; a row of zeros must not become NaN."""
    path = _normalised(tmp_path)
    x = np.stack([floats(8, scale=2000), floats(8, seed=1, scale=1e-3), np.zeros(8, np.float32)])
    wanted = _run(path, x=x)["embedding"]
    halve(path, "text", "float16", set())
    assert np.abs(_run(path, x=x)["embedding"] - wanted).max() < 2e-3


def test_root_mean_square_norm_is_float32_until_it_divides(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [
            node("MatMul", ["x", "w"], "h"),
            node("Pow", ["h", "two"], "squares"),
            node("ReduceMean", ["squares", "last"], "mean"),
            node("Add", ["mean", "eps"], "positive"),
            node("Sqrt", ["positive"], "magnitude"),
            node("Div", ["h", "magnitude"], "unit"),
            node("Mul", ["unit", "weight"], "normed"),
            node("Add", ["normed", "h"], "residual"),
            node("MatMul", ["residual", "w"], "y"),
        ],
        [("x", "float32", ["B", 8])],
        [("y", "float32", ["B", 8])],
        {
            "w": floats(8, 8),
            "two": np.float32(2),
            "last": np.array([-1]),
            "eps": np.float32(1e-6),
            "weight": floats(8, seed=3),
        },
    )
    x = floats(3, 8, scale=300)
    wanted = _run(path, x=x)["y"]
    halve(path, "g", "float16", set())
    types = _types(path)
    assert {types[name] for name in ("squares", "mean", "magnitude", "unit")} == {"float32"}
    assert {types[name] for name in ("h", "normed", "residual")} == {"float16"}
    assert np.abs(_run(path, x=x)["y"] - wanted).max() < 4e-3 * np.abs(wanted).max()


def test_masks_become_the_largest_number_and_tiny_constants_stay_float32(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [
            node("MatMul", ["x", "w"], "scores"),
            node("Where", ["visible", "scores", "hidden"], "masked"),
            node("Softmax", ["masked"], "weights"),
            node("Add", ["weights", "tiny"], "positive"),
            node("MatMul", ["positive", "w"], "y"),
        ],
        [("x", "float32", ["B", 4]), ("visible", "bool", ["B", 4])],
        [("y", "float32", ["B", 4])],
        {"w": floats(4, 4), "hidden": np.float32(-1e30), "tiny": np.float32(1e-9)},
    )
    x, visible = floats(2, 4), np.array([[True, False, True, True], [False] * 4])
    wanted = _run(path, x=x, visible=visible)["y"]
    halve(path, "g", "float16", set())
    model = onnx.load(path)
    hidden = next(t for t in model.graph.initializer if t.name.startswith("hidden"))
    assert numpy_helper.to_array(hidden) == np.float16(-65504)
    types = _types(path)
    assert types["masked"] == "float16"
    assert types["positive"] == "float32"
    assert np.abs(_run(path, x=x, visible=visible)["y"] - wanted).max() < 2e-3


def test_counts_and_positions_are_exact(tmp_path: Path) -> None:
    """Float16 has no 2049, bfloat16 no 257."""
    path = save(
        tmp_path / "g.onnx",
        [
            node("Cast", ["places"], "numbers", to=TensorProto.FLOAT),
            node("Mul", ["numbers", "frequencies"], "angles"),
            node("Sin", ["angles"], "waves"),
            node("MatMul", ["waves", "w"], "y"),
        ],
        [("places", "int64", ["B", 1])],
        [("y", "float32", ["B", 4])],
        {"frequencies": floats(8), "w": floats(8, 4)},
    )
    places = np.array([[2049], [4099]])
    wanted = _run(path, places=places)["y"]
    halve(path, "g", "float16", set())
    assert np.abs(_run(path, places=places)["y"] - wanted).max() < 5e-3


def test_infinite_and_too_large_weights(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [node("Add", ["x", "table"], "y"), node("MatMul", ["y", "w"], "z")],
        [("x", "float32", ["B", 3])],
        [("z", "float32", ["B", 3])],
        {"table": np.float32([1e9, -np.inf, 2]), "w": floats(3, 3)},
    )
    halve(path, "g", "float16", set())
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert tensors["table_float16"].tolist() == [65504.0, -np.inf, 2.0]


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_scan_computes_in_the_low_type(tmp_path: Path, low: str) -> None:
    body = helper.make_graph(
        [
            node("MatMul", ["state", "recurrence"], "moved"),
            node("Add", ["moved", "x"], "sum"),
            node("Tanh", ["sum"], "next"),
            node("Identity", ["next"], "out"),
        ],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 4]) for n in ("state", "x")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 4]) for n in ("next", "out")],
    )
    path = save(
        tmp_path / "g.onnx",
        [helper.make_node("Scan", ["first", "xs"], ["last", "all"], body=body, num_scan_inputs=1)],
        [("first", "float32", ["B", 4]), ("xs", "float32", ["T", "B", 4])],
        [("last", "float32", ["B", 4]), ("all", "float32", ["T", "B", 4])],
        {"recurrence": floats(4, 4)},
    )
    first, xs = floats(2, 4), floats(5, 2, 4, seed=1)
    wanted = _run(path, first=first, xs=xs)
    halve(path, "g", low, {"first", "last"})
    inner = onnx.load(path).graph.node
    scan = next(each for each in inner if each.op_type == "Scan")
    kinds = {value.type.tensor_type.elem_type for value in scan.attribute[0].g.input}
    assert kinds == {helper.np_dtype_to_tensor_dtype(_numpy(low))}
    if low == "bfloat16":
        emulate(path, tmp_path / "emulated.onnx")
        given = _run(tmp_path / "emulated.onnx", first=first, xs=xs)
    else:
        given = _run(path, first=first.astype(np.float16), xs=xs)
    tolerance = {"float16": 4e-3, "bfloat16": 5e-2}[low]
    for name in wanted:
        assert np.abs(given[name].astype(np.float32) - wanted[name]).max() < tolerance


def test_bfloat16_convolution_is_refused_with_its_graph(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [node("Conv", ["x", "w"], "y")],
        [("x", "float32", ["B", 3, 8, 8])],
        [("y", "float32", ["B", 4, 7, 7])],
        {"w": floats(4, 3, 2, 2)},
    )
    before = path.read_bytes()
    with pytest.raises(SetupError, match="no bfloat16 kernel of Conv at opset 20 in image"):
        halve(path, "image", "bfloat16", set())
    assert path.read_bytes() == before


def test_emulation_rounds_every_bfloat16_value(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [
            node("MatMul", ["x", "w"], "h"),
            node("Relu", ["h"], "positive"),
            node("MatMul", ["positive", "w"], "y"),
        ],
        [("x", "float32", ["B", 8])],
        [("y", "float32", ["B", 8])],
        {"w": floats(8, 8)},
    )
    halve(path, "g", "bfloat16", set())
    emulate(path, tmp_path / "emulated.onnx")
    bf16 = _numpy("bfloat16")

    def rounded(values: Any) -> Any:
        return values.astype(bf16).astype(np.float32)

    x, weight = floats(3, 8), rounded(floats(8, 8))
    hidden = rounded(np.maximum(rounded(rounded(x) @ weight), 0))
    given = _run(tmp_path / "emulated.onnx", x=x)["y"]
    assert np.array_equal(rounded(given), given)
    wanted = rounded(hidden @ weight)
    assert np.mean(given == wanted) > 0.8, "sums in another order may round to a neighbour"
    assert np.abs(given - wanted).max() < 0.01 * np.abs(wanted).max()
