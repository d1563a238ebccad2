"""Models compute the same on every processor, or are not loaded there."""

from __future__ import annotations

import logging
import os
import platform
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from inference import saturation
from inference.bundle.manifest import Graph, Role, Tensor
from inference.bundle.self_check import FILE, OFF, PARAMETER, SelfCheck, checksum
from inference.engine.runners.openvino.runner import PagedRunner
from inference.errors import BundleError
from inference.generation import Finished, Generation, Hypothesis
from inference.load_check import (
    LoadCheck,
    compared_ports,
    draw_picture,
    generated_outputs,
    load_check,
    sample_values,
    without_ties,
)
from inference.openvino_core import openvino_core, scales_activations, why_not_here
from inference.saturation import EXTERNAL_DATA, open_cpu_session, products_saturate
from inference.stateless.compiled_graphs import CompiledGraphs, multiply_in_float32
from inference.stateless.sessions import InvalidArgument
from tests.inference.engine.toy_bundles import for_openvino, language_bundle
from tests.inference.tiny_models import parse_graph
from tests.programs import run_program

INPUTS, OUTPUTS = 96, 40
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.integers(-127, 128, (INPUTS, OUTPUTS)).astype(np.int8)
BYTES = RANDOM.integers(0, 256, (5, INPUTS)).astype(np.uint8)
EXACT = (BYTES.astype(np.int64) - 128) @ WEIGHT.astype(np.int64)


def _products() -> onnx.ModelProto:
    """Products by a weight, by it again, by a table that tokens are looked up in, and the fast one.

    Its activations are integers from -128 to 127, whose scale is 1.
    """
    outputs = ", ".join(f"float[rows, {OUTPUTS}] {n}" for n in ("first", "second", "third", "fast"))
    text = f"""(uint8[rows, {INPUTS}] x, int64[rows] ids)
        => ({outputs}, float[rows, {INPUTS}] looked_up) {{
        first = com.microsoft.MatMulIntegerToFloat(x, weight, one, ones, zero)
        second = com.microsoft.MatMulIntegerToFloat(x, weight, one, ones, zero)
        turned = Transpose <perm = [1, 0]> (table)
        third = com.microsoft.MatMulIntegerToFloat(x, turned, one, ones, zero)
        rows = Gather(table, ids)
        looked_up = Cast <to = 1> (rows)
        floats = Cast <to = 1> (x)
        centred = Sub(floats, shift)
        fast = com.microsoft.DynamicQuantizeMatMul(centred, weight, ones, "", bias)
    }}"""
    constants = {
        "weight": WEIGHT,
        "table": np.ascontiguousarray(WEIGHT.T),
        "one": np.array(1, np.float32),
        "ones": np.ones(OUTPUTS, np.float32),
        "zero": np.array(128, np.uint8),
        "shift": np.array(128, np.float32),
        "bias": np.arange(OUTPUTS, dtype=np.float32),
    }
    return parse_graph(text, constants, opset=20)


def _run_products(session: onnxruntime.InferenceSession) -> dict[str, NDArray[np.float32]]:
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


def test_graph_that_measures_products_is_what_onnx_would_make() -> None:
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMulInteger", ["x", "weight"], ["y"])],
            "products",
            [helper.make_tensor_value_info("x", TensorProto.UINT8, ("rows", 64))],
            [helper.make_tensor_value_info("y", TensorProto.INT32, ("rows", 32))],
            [numpy_helper.from_array(np.full((64, 32), 127, np.int8), "weight")],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    assert onnx.load_from_string(saturation.PRODUCTS) == made


@pytest.mark.parametrize("source", ["bytes", "file", "weights beside the file"])
def test_products_are_exact_integers(form: bool, source: str, tmp_path: Path) -> None:
    model, path = _products(), tmp_path / "model.onnx"
    is_beside = source == "weights beside the file"
    onnx.save_model(
        model, path, save_as_external_data=is_beside, location="data", size_threshold=100
    )
    given = model.SerializeToString() if source == "bytes" else path
    found = _run_products(open_cpu_session(given, onnxruntime.SessionOptions()))
    for name in ("first", "second", "third"):
        np.testing.assert_array_equal(found[name], _wanted())
    np.testing.assert_array_equal(found["fast"], _wanted() + np.arange(OUTPUTS))
    np.testing.assert_array_equal(found["looked_up"], WEIGHT.T[: len(BYTES)])


def test_graph_of_bytes_finds_its_weights_in_the_folder_of_its_options(
    form: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(
        _products(), path, save_as_external_data=True, location="data", size_threshold=100
    )
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXTERNAL_DATA, str(tmp_path))
    graph = onnx.load(path, load_external_data=False).SerializeToString()
    np.testing.assert_array_equal(
        _run_products(open_cpu_session(graph, options))["first"], _wanted()
    )


def test_file_that_is_no_graph_is_refused_by_name(form: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"not a graph")
    with pytest.raises(Exception, match=str(file)):
        open_cpu_session(file, onnxruntime.SessionOptions())


def test_graph_without_products_of_bytes_is_loaded_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saturation, "products_saturate", lambda: True)
    session = open_cpu_session(_negation(tmp_path), onnxruntime.SessionOptions())
    (found,) = session.run(None, {"x": np.ones(2, np.float32)})
    assert found.tolist() == [-1, -1]


def test_session_keeps_no_second_copy_of_its_weights(form: bool) -> None:
    session = open_cpu_session(_products().SerializeToString(), onnxruntime.SessionOptions())
    assert session._model_bytes is None
    np.testing.assert_array_equal(_run_products(session)["first"], _wanted())


def test_session_reads_nothing_that_was_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    convert, held = saturation.use_unsigned_weights, {}
    hold = lambda *given: held.update(convert(*given)) or dict(held)  # noqa: E731
    monkeypatch.setattr(saturation, "products_saturate", lambda: True)
    monkeypatch.setattr(saturation, "use_unsigned_weights", hold)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = open_cpu_session(_products().SerializeToString(), options)
    assert len(held) == 2
    for weights in held.values():
        weights.fill(77)
    for name in ("first", "third"):
        np.testing.assert_array_equal(_run_products(session)[name], _wanted())


Floats = NDArray[np.float64]
PRODUCT_INPUTS, PRODUCT_OUTPUTS, HEADS, HEAD = 64, 64, 4, 16
SCALES = {"x": 1 / 64, "h": 1 / 8}
"""Powers of two: nothing but products can be inexact."""


@pytest.fixture
def weight() -> NDArray[np.int8]:
    """Loud: sums of pairs exceed 16 bits."""
    random = np.random.default_rng(0)
    return (127 * random.choice([-1, 1], (PRODUCT_INPUTS, PRODUCT_OUTPUTS))).astype(np.int8)


@pytest.fixture
def path(tmp_path: Path, weight: NDArray[np.int8]) -> Path:
    """A layer, and the products of its heads with each other, as NNCF writes them."""
    held = {
        "w": weight,
        "ws": np.full(PRODUCT_OUTPUTS, 1 / 512, np.float32),
        "wz": np.zeros(PRODUCT_OUTPUTS, np.int8),
        "heads": np.array([0, 0, HEADS, HEAD]),
        "zero": np.array(5, np.int8),
        **{f"{name}_scale": np.array(scale, np.float32) for name, scale in SCALES.items()},
    }
    text = f"""(float[B, T, {PRODUCT_INPUTS}] x) => (float[B, {HEADS}, T, T] y) {{
        x_int8 = QuantizeLinear(x, x_scale, zero)
        x_rounded = DequantizeLinear(x_int8, x_scale, zero)
        wf = DequantizeLinear <axis = 1> (w, ws, wz)
        h = MatMul(x_rounded, wf)
        h_int8 = QuantizeLinear(h, h_scale, zero)
        h_rounded = DequantizeLinear(h_int8, h_scale, zero)
        parts = Reshape(h_rounded, heads)
        queries = Transpose <perm = [0, 2, 1, 3]> (parts)
        keys = Transpose <perm = [0, 2, 3, 1]> (parts)
        y = MatMul(queries, keys)
    }}"""
    onnx.save(parse_graph(text, held, opset=20), tmp_path / "int8.onnx")
    return tmp_path / "int8.onnx"


def _bytes(values: Floats, name: str) -> Floats:
    found: Floats = np.clip(np.rint(values / SCALES[name]) + 5, -128, 127) - 5
    return found * SCALES[name]


def _expected(rows: Floats, weight: NDArray[np.int8]) -> Floats:
    hidden = _bytes(_bytes(rows, "x") @ (weight / 512), "h")
    heads = hidden.reshape(*rows.shape[:2], HEADS, HEAD).transpose(0, 2, 1, 3)
    found: Floats = heads @ heads.transpose(0, 1, 3, 2)
    return found


def _rows() -> Floats:
    random = np.random.default_rng(1)
    return np.clip(random.normal(1, 1, (3, 7, PRODUCT_INPUTS)), -3, 3).round(2)


def _config() -> dict[str, object]:
    return {"name": "int8", "input": [{"name": "x"}], "output": [{"name": "y"}]}


@pytest.mark.parametrize("saturates", [None, True], ids=["as here", "without VNNI"])
def test_int8_products_are_exact(
    saturates: bool | None, path: Path, weight: NDArray[np.int8], monkeypatch: pytest.MonkeyPatch
) -> None:
    if saturates:
        module = "inference.stateless.compiled_graphs.products_saturate"
        monkeypatch.setattr(module, lambda: True)
    compiled, rows = CompiledGraphs(path, _config()), _rows()
    found = compiled.run(["y"], {"x": rows.astype(np.float32)})["y"]
    want = _expected(rows, weight)
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()
    for row, together in zip(rows.astype(np.float32), found, strict=True):
        assert np.array_equal(compiled.run(["y"], {"x": row[None]})["y"][0], together)


def test_nothing_is_multiplied_in_bytes(path: Path) -> None:
    model = openvino_core().read_model(path)
    assert _int8_nodes(model)
    multiply_in_float32(model)
    assert not _int8_nodes(model)


def _int8_nodes(model: object) -> list[str]:
    """Products that a compiled model computes in int8, or in an operator of unknown parts."""
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = [each.get_rt_info() for each in compiled.get_runtime_model().get_ops()]
    kinds = [(str(f["layerType"].value), str(f["primitiveType"].value)) for f in facts]
    products = ("FullyConnected", "MatMul", "Subgraph")
    return [kind for kind, form in kinds if kind in products and form.endswith("i8")]


def test_a_graph_without_fixed_scales_stays_as_it_is(tmp_path: Path) -> None:
    model = openvino_core().read_model(_negation(tmp_path))
    before = [each.get_type_name() for each in model.get_ordered_ops()]
    multiply_in_float32(model)
    assert [each.get_type_name() for each in model.get_ordered_ops()] == before


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
    file = _negation(tmp_path)
    assert _output(RELEASE_TWO_MODELS, file) == "received\n"


def test_a_run_that_fails_on_one_core_does_not_return_the_last_results(tmp_path: Path) -> None:
    file = _saved(tmp_path, "(float[N] x, float[M] y) => (float[K] z) { z = Add(x, y) }")
    found = _output(FAIL_ON_ONE_CORE, file, str(min(os.sched_getaffinity(0))))
    assert found == "[3.0, 3.0]\nerror\n[3.0, 3.0]\n"


def _saved(folder: Path, text: str) -> Path:
    file = folder / "model.onnx"
    onnx.save(parse_graph(text, opset=20), file)
    return file


def _negation(folder: Path) -> Path:
    return _saved(folder, "(float[N] x) => (float[N] y) { y = Neg(x) }")


def _output(program: str, *arguments: object) -> str:
    return run_program(sys.executable, "-c", program, *map(str, arguments))


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


CHECKED = {"y": np.array([1, -2, 4], np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version folder with a graph and its check."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(bytes(1000))
    _write_check(tmp_path / "1")
    return tmp_path / "1"


def _write_check(folder: Path) -> None:
    checksums = {"model.onnx": checksum(folder / "model.onnx")}
    inputs = {"x": np.ones((1, 2), np.int64)}
    SelfCheck(checksums, tolerance=0.01, inputs=inputs, outputs=CHECKED).write(folder)


def _load_checked(folder: Path, y: Any, error: Exception | None = None) -> list[Any]:
    """Loads a model that computes `y`; returns the calls that it got."""
    calls = []
    with LoadCheck(folder, "twice version 1") as check:
        if error is not None:
            raise error
        check.compare_outputs(
            lambda names, feeds: calls.append((list(names), feeds)) or {"y": np.array(y)}, ["y"]
        )
    return calls


def test_what_is_written_is_read(folder: Path) -> None:
    found = SelfCheck.read(folder)
    assert found is not None
    assert found.tolerance == 0.01
    assert found.inputs["x"].tolist() == [[1, 1]]
    assert found.outputs["y"].dtype == np.float32
    assert (folder / FILE).stat().st_size < 2000


def test_model_that_computes_what_its_export_did_is_loaded(folder: Path) -> None:
    [(names, feeds)] = _load_checked(folder, [1.03, -2, 3.97])
    assert names == ["y"]
    assert feeds["x"].dtype == np.int64


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        ([1, -2, 4.06], "y differs by 1.5e-02 of its largest value, 1.0e-02 is allowed"),
        ([1, -2, np.nan], "y differs by inf"),
        ([1, -2, np.inf], "y differs by inf"),
        ([1, -2], "y differs by inf"),
    ],
)
def test_other_outputs_are_refused_in_one_line(folder: Path, y: Any, problem: str) -> None:
    with pytest.raises(BundleError) as refusal:
        _load_checked(folder, y)
    message = str(refusal.value)
    assert message.startswith(f"twice version 1 fails its self-check: {problem}")
    assert "onnxruntime" in message
    assert "\n" not in message


@pytest.mark.parametrize("change", ["one bit", "truncated", "missing"])
def test_changed_file_is_refused_by_its_name(folder: Path, change: str) -> None:
    path = folder / "model.onnx"
    content = bytearray(path.read_bytes())
    if change == "one bit":
        content[500] ^= 1
        path.write_bytes(content)
    elif change == "truncated":
        path.write_bytes(content[:999])
    else:
        path.unlink()
    with pytest.raises(BundleError, match=r"model\.onnx changed since the export: export it again"):
        _load_checked(folder, CHECKED["y"])
    with pytest.raises(BundleError, match=r"model\.onnx changed"):  # not the runtime's own words
        _load_checked(folder, CHECKED["y"], RuntimeError("protobuf parsing failed"))


def test_error_of_unchanged_files_stays_as_it_is(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        _load_checked(folder, CHECKED["y"], RuntimeError("out of memory"))


def test_damaged_check_is_refused(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BundleError, match="is damaged"):
        LoadCheck(folder, "twice version 1")


def test_older_bundle_is_loaded_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / FILE).unlink()
    with LoadCheck(folder, "twice version 1") as check:
        assert not check.has_outputs
    [message] = caplog.messages
    assert "has no self-check" in message


def test_check_can_be_switched_off(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "model.onnx").unlink()
    caplog.set_level(logging.WARNING)
    lines: list[str] = []
    with load_check(folder, "twice", {PARAMETER: OFF}, lines.append) as check:
        assert not check.has_outputs
    assert not caplog.messages
    with pytest.raises(BundleError), load_check(folder, "twice", {}, lines.append):
        pass
    (folder / FILE).unlink()
    with load_check(folder, "twice", {}, lines.append):
        pass
    assert lines == ["twice version 1 has no self-check: export it again to have one"]


def _finished(tokens: list[int], top: list[list[float]]) -> Finished:
    pairs = tuple(tuple(enumerate(values)) for values in top)
    return Finished((Hypothesis(tuple(tokens), 0.0, "stop", top=pairs),), 1)


def test_tokens_are_compared_up_to_the_first_near_tie(tmp_path: Path) -> None:
    top = [[-0.1, -3.0], [-1.0, -1.01, -2.0], [-0.2, -4.0]]
    outputs = generated_outputs(_finished([7, 8, 9], top))
    kept = without_ties(outputs, tolerance=0.01, scale=4.0)
    assert kept["tokens"].tolist() == [7]
    assert len(kept["log-probabilities"]) == 2  # those of the near tie follow the same tokens
    folder = tmp_path / "1"
    folder.mkdir()
    SelfCheck({}, 0.01, 4.0, {}, kept, {"max_new_tokens": 3}).write(folder)
    rules = Generation(pad_token_id=0, max_new_tokens=5)
    for tokens, is_same in (([7, 8, 9], True), ([7, 5, 5], True), ([6, 8, 9], False)):
        with LoadCheck(folder, "m version 1") as check:
            if is_same:
                check.compare_tokens(lambda _, t=tokens: _finished(t, top), rules)
                continue
            with pytest.raises(BundleError, match=r"tokens \[6\] are not \[7\]"):
                check.compare_tokens(lambda _, t=tokens: _finished(t, top), rules)


def test_banned_tokens_leave_holes_that_must_be_the_same() -> None:
    outputs = generated_outputs(_finished([1, 2], [[0.0], [-0.5, -1.0]]))
    check = SelfCheck({}, 0.01, outputs=outputs)
    assert check.compare(outputs) is None
    other = generated_outputs(_finished([1, 2], [[0.0, -9.0], [-0.5, -1.0]]))
    assert "inf" in str(check.compare(other))


def test_choices_among_near_ties_are_not_compared() -> None:
    def graph(*roles: Role) -> Graph:
        ports = [Tensor(name=r.value, dtype="float32", shape=("B",), role=r) for r in roles]
        return Graph(file="g", inputs=(), outputs=tuple(ports))

    assert compared_ports(graph(Role.TOP_TOKENS, Role.TOP_SCORES)) == ["top_scores"]
    assert compared_ports(graph(Role.BOXES, Role.CHOSEN, Role.CHOSEN_SCORES)) == ["chosen_scores"]
    assert compared_ports(graph(Role.EMBEDDING)) == ["embedding"]


def test_large_outputs_are_sampled_over_their_whole_length() -> None:
    assert sample_values(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    sampled = sample_values(np.arange(10_000).reshape(4, -1))
    assert len(sampled) <= 4096
    assert sampled[-1] > 9_990
    assert sample_values(np.zeros(0)).size == 0


def test_picture_takes_little_space() -> None:
    picture = draw_picture((2, 224, 224, 3))
    assert picture.shape == (2, 224, 224, 3)
    assert len(np.unique(picture)) > 100
    assert len(zlib.compress(picture.tobytes())) < 12_000
