"""Bundles for TensorRT: what they hold, what is refused, and their profiles."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from export.graphs.to_onnx import to_onnx
from export.parity.graph_runs import bundle_path
from export.parity.verify import Report, verify
from export.pipeline.publish import config
from export.precision import Device, Precision, Runtime, check_device
from export.targets.cuda.float32_nodes import Islands
from export.targets.cuda.half_precision import halve
from export.targets.runtime_choice import check_runtime
from export.targets.tensorrt.checks import (
    TENSORRT,
    check_constants,
    check_operators,
    check_positions,
    operators,
)
from export.targets.tensorrt.lowering import (
    SHORT,
    add_profiles,
    check_profiles,
    finish_tensorrt,
    for_tensorrt,
    largest_rows,
    takes,
    with_profiles,
)
from inference.bundle.manifest import Bundle, Graph, Limits, Manifest, Profile, Role, Tensor
from inference.errors import SetupError
from inference.tasks.shared.length_buckets import ROWS, Padding, buckets, padded_length
from inference.tasks.shared.model_calls import MAX_ROWS
from tests.export.conftest import Bundles, Twins
from tests.export.pipeline.test_publish import IMAGE, TEXT
from tests.export.targets.cuda.bundles import node, save
from tests.export.twin import EXPORTED
from triptych.tasks.fill_mask import MAX_TARGETS


def normalised(path: Path) -> Path:
    """The product over its L2 norm, clamped at 1e-12."""
    return save(
        path,
        [
            node("MatMul", ["x", "w"], "h"),
            node("Mul", ["h", "h"], "square"),
            node("ReduceSum", ["square", "axes"], "sum", keepdims=1),
            node("Sqrt", ["sum"], "norm"),
            node("Clip", ["norm", "least"], "clamped"),
            node("Div", ["h", "clamped"], "unit"),
            node("MatMul", ["unit", "w"], "y"),
        ],
        [("x", "float32", ["B", 4])],
        [("y", "float32", ["B", 4])],
        {
            "w": np.eye(4, dtype=np.float32),
            "axes": np.array([-1]),
            "least": np.array(1e-12, np.float32),
        },
    )


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_clamp_of_a_divisor_stays_float32(low: str, tmp_path: Path) -> None:
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", low, frozenset(), TENSORRT)
    check_constants(path, "text")
    assert set(check_operators(path, "text")) == {"float32", low}


def test_clamp_that_underflows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: no islands, so 1e-12 becomes 0 in float16."""
    monkeypatch.setattr(Islands, "_go_forward", lambda self, index, node: None)
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", "float16", frozenset(), TENSORRT)
    with pytest.raises(SetupError, match=r"clamp \(Clip\) in text is 0 in float16"):
        check_constants(path, "text")


def with_table(path: Path, *, is_gathered: bool) -> Path:
    """Tokens' embeddings plus those of their positions, of a table of 16."""
    table = np.ones((16, 4), np.float32)
    reading = (
        [
            node("Range", ["zero", "length", "one"], "places"),
            node("Gather", ["table", "places"], "position"),
        ]
        if is_gathered
        else [
            node("Unsqueeze", ["length", "zeros"], "end"),
            node("Slice", ["table", "zeros", "end", "zeros"], "position"),
        ]
    )
    return save(
        path,
        [
            node("Shape", ["token_ids"], "shape"),
            node("Gather", ["shape", "one"], "length"),
            *reading,
            node("Gather", ["words", "token_ids"], "word"),
            node("Add", ["word", "position"], "embedding"),
        ],
        [("token_ids", "int64", ["B", "T"]), ("lengths", "int32", ["B"])],
        [("embedding", "float32", ["B", "T", 4])],
        {
            "table": table,
            "words": table,
            "zero": np.array(0),
            "one": np.array(1),
            "zeros": np.array([0]),
        },
    )


@pytest.mark.parametrize("is_gathered", [True, False])
def test_limit_beyond_the_table_of_positions_is_refused(is_gathered: bool, tmp_path: Path) -> None:
    """A planted fault: the manifest's limit is larger than the table."""
    path = with_table(tmp_path / "model.onnx", is_gathered=is_gathered)
    graph = Graph(
        file="model.onnx",
        inputs=(
            Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
            Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
        ),
        outputs=(),
    )
    fits = with_profiles(graph, Limits(max_input_tokens=16), "text")
    check_positions(path, fits, "text")
    beyond = with_profiles(graph, Limits(max_input_tokens=17), "text")
    with pytest.raises(SetupError, match="text does not compute 17 tokens, the checkpoint's own"):
        check_positions(path, beyond, "text")


def test_operators_that_the_parser_lacks_are_refused_with_their_graph(tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
            node("Gelu", ["x"], "z", domain="com.microsoft"),
            node("DequantizeLinear", ["q", "scale", "zero"], "y"),
        ],
        [("x", "float32", ["B", 4])],
        [("y", "float32", ["B", 4]), ("z", "float32", ["B", 4])],
    )
    with pytest.raises(SetupError) as refused:
        check_operators(path, "image")
    assert refused.value.message == (
        "TensorRT has no operator for nodes of image: DynamicQuantizeLinear (1), "
        "com.microsoft.Gelu (1): export standard operators"
    )


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent_operators_have_float32_alone(operator: str) -> None:
    assert operator in operators()
    assert TENSORRT.has("", operator, 14, {"T": "float32"})
    assert not TENSORRT.has("", operator, 14, {"T": "float16"})


def test_operators_of_one_low_type_alone() -> None:
    assert TENSORRT.has("", "Conv", 11, {"T": "bfloat16"})
    assert TENSORRT.has("", "HardSwish", 14, {"T": "float16"})
    assert not TENSORRT.has("", "HardSwish", 14, {"T": "bfloat16"})


def on_tensorrt(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> tuple[Bundle, Report]:
    """A twin's bundle for TensorRT, through the gate."""
    given, graphs = bundles(name, EXPORTED), twins(name, EXPORTED).graphs()
    fields = {"device": "cuda", "runtime": "tensorrt", "precision": precision.value}
    if given.manifest.limits.max_input_tokens is None:  # a rotary twin's
        fields["limits"] = Limits(max_input_tokens=40)
    manifest = add_profiles(given.manifest.model_copy(update=fields))
    staged = Bundle(folder / "stage" / manifest.name, manifest)
    shutil.copytree(given.folder.parent, folder / "stage")
    for key, lowering in graphs.lowerings.items():
        to_onnx(for_tensorrt(lowering), bundle_path(staged, key))
    report = Report()
    verify(graphs, staged, report)
    finish_tensorrt(report, graphs, staged, precision)
    return staged, report


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("vit", Precision.BF16),  # refused for CUDA, whose Conv has no bfloat16
        pytest.param("clip", Precision.FP16, marks=pytest.mark.full),
        pytest.param("clip", Precision.BF16, marks=pytest.mark.full),
    ],
)
def test_model_is_exported_with_its_types_and_profiles(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle, report = on_tensorrt(name, precision, twins, bundles, tmp_path)
    manifest = bundle.manifest
    low = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    assert report.tensorrt["nodes"][low] > report.tensorrt["nodes"]["float32"] > 0
    assert report.tensorrt["profiles"] == dict.fromkeys(manifest.graphs, 2)
    assert 0 < report.tensorrt["parity"]["worst_difference"] < 0.1
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    for key in manifest.graphs:
        model = onnx.load(bundle_path(bundle, key), load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.full
def test_recurrent_classifier_is_refused_in_float16_and_names_the_operator(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match="TensorRT has no float16 kernel of LSTM at opset 20 in"):
        on_tensorrt("rnn-encoder", Precision.FP16, twins, bundles, tmp_path)


def _parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_configuration_is_read_by_tritons_own_protobuf(bundles: Bundles) -> None:
    fields = {"device": "cuda", "runtime": "tensorrt"}
    manifest = add_profiles(bundles("clip", EXPORTED).manifest.model_copy(update=fields))
    for key, model in manifest.parts.items():
        parsed = _parsed(config(manifest, model))
        assert (parsed.backend, parsed.default_model_filename) == ("tensorrt", "model.plan")
        assert parsed.max_batch_size == 64
        [group] = parsed.instance_group
        assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
        assert (group.count, list(group.gpus)) == (1, [0])
        profiles = manifest.graphs[key].profiles
        assert list(group.profile) == [str(index) for index in range(len(profiles))]
        most = max(shapes[2][0] for each in profiles for shapes in each.shapes.values())
        assert parsed.max_batch_size == most
        assert "intra_op_thread_count" not in parsed.parameters


def test_combinations_that_nothing_serves_are_refused(twins: Twins) -> None:
    check_device(Device.CUDA, Precision.BF16, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--runtime tensorrt is for --device cuda"):
        check_device(Device.CPU, Precision.FP16, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--device cuda has fp32, fp16, bf16"):
        check_device(Device.CUDA, Precision.INT8, Runtime.TENSORRT)
    with pytest.raises(SetupError, match="--runtime tensorrt is for stateless models"):
        check_runtime(twins("marian", EXPORTED).graphs(), Runtime.TENSORRT, Precision.FP32)


MASKS = TEXT.model_copy(
    update={
        "inputs": (
            *TEXT.inputs,
            Tensor(name="positions", dtype="int64", shape=("B", "M"), role=Role.POSITIONS),
            Tensor(name="choices", dtype="int64", shape=("B", "N"), role=Role.CHOICES),
        )
    }
)


def test_images_have_a_profile_for_a_call_and_one_for_joined_calls() -> None:
    graph = with_profiles(IMAGE, Limits(), "image")
    assert [each.shapes["pixels"] for each in graph.profiles] == [
        ((1, 4, 6, 3), (ROWS, 4, 6, 3), (ROWS, 4, 6, 3)),
        ((1, 4, 6, 3), (MAX_ROWS // 2, 4, 6, 3), (MAX_ROWS, 4, 6, 3)),
    ]


def test_texts_have_profiles_for_short_ones_and_for_all() -> None:
    graph = with_profiles(TEXT, Limits(max_input_tokens=512), "text")
    largest = [each.shapes["token_ids"][2] for each in graph.profiles]
    assert largest == [(ROWS, SHORT), (MAX_ROWS, SHORT), (ROWS, 512), (MAX_ROWS, 512)]
    assert {each.shapes["lengths"][2] for each in graph.profiles} == {(ROWS,), (MAX_ROWS,)}
    short = with_profiles(TEXT, Limits(max_input_tokens=48), "text")
    assert [each.shapes["token_ids"][1] for each in short.profiles] == [
        (ROWS, 24),
        (MAX_ROWS // 2, 24),
    ]


def test_every_profile_grows_from_least_to_largest() -> None:
    for limit in (1, 7, 64, 65, 130, 8192):
        for profile in with_profiles(MASKS, Limits(max_input_tokens=limit), "x").profiles:
            for shapes in profile.shapes.values():
                for least, tuned, largest in zip(*shapes, strict=True):
                    assert 1 <= least <= tuned <= largest


def test_rows_that_are_joined_shrink_with_the_limit_but_never_below_a_call() -> None:
    rows = [largest_rows(TEXT, Limits(max_input_tokens=t)) for t in (128, 512, 2048, 8192, 32768)]
    assert rows == [64, 64, 16, ROWS, ROWS]
    assert largest_rows(MASKS, Limits(max_input_tokens=128)) == ROWS
    assert largest_rows(IMAGE, Limits(max_input_tokens=77)) == MAX_ROWS


@pytest.mark.parametrize("graph", [TEXT, MASKS, IMAGE])
@pytest.mark.parametrize("limit", [1, 8, 63, 77, 512, 2050])
def test_profiles_cover_every_bucket(graph: Graph, limit: int) -> None:
    limits = Limits(max_input_tokens=limit)
    check_profiles(with_profiles(graph, limits, "x"), limits, "x")


def test_profile_that_leaves_out_a_bucket_is_refused() -> None:
    """A planted fault: the longest bucket is cut off."""
    limits = Limits(max_input_tokens=128)
    graph = with_profiles(TEXT, limits, "text")
    short = graph.model_copy(update={"profiles": graph.profiles[:2]})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 1, T = 72"):
        check_profiles(short, limits, "text")
    alone = graph.model_copy(update={"profiles": graph.profiles[::2]})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 64, T = 1"):
        check_profiles(alone, limits, "text")


def test_profile_that_leaves_out_masks_or_targets_is_refused() -> None:
    limits = Limits(max_input_tokens=32)
    graph = with_profiles(MASKS, limits, "text")
    for name, most in (("positions", (ROWS, 31)), ("choices", (ROWS, MAX_TARGETS - 1))):
        shapes = dict(graph.profiles[0].shapes)
        shapes[name] = (*shapes[name][:2], most)
        cut = graph.model_copy(update={"profiles": (Profile(shapes=shapes),)})
        with pytest.raises(SetupError, match="no TensorRT profile of text takes"):
            check_profiles(cut, limits, "text")


def test_lengths_are_those_of_the_gateways_buckets() -> None:
    """What `check_profiles` enumerates is what `buckets` pads to."""
    for limit in (5, 8, 30, 77):
        made = {
            bucket.token_ids.shape[1]
            for n in range(1, limit + 1)
            for bucket in buckets([[0] * n], Padding(0), limit)
        }
        assert made == {padded_length(n, limit) for n in range(1, limit + 1)}


def test_no_limit_is_refused() -> None:
    with pytest.raises(SetupError, match="no limit on the tokens of text: a TensorRT plan needs"):
        with_profiles(TEXT, Limits(), "text")


def test_unknown_dimension_is_refused() -> None:
    port = Tensor(name="frames", dtype="uint8", shape=("B", "I", 4))
    with pytest.raises(SetupError, match=r"film has dimensions without a range .*\['I'\]"):
        with_profiles(Graph(file="model.onnx", inputs=(port,), outputs=()), Limits(), "film")


def test_text_beyond_the_limit_fits_no_profile() -> None:
    graph = with_profiles(TEXT, Limits(max_input_tokens=77), "text")
    sizes = {"B": 1, "T": 78, "M": 1, "N": 1}
    assert not any(takes(profile, graph, sizes) for profile in graph.profiles)
