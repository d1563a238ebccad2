"""Graphs of architectures and examples are parsed and built by TensorRT.

Engines run it with ONNX Runtime (D70); this shows what TensorRT could run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import defs

from examples import CHECKPOINTS, checkpoint
from export.graphs.to_onnx import to_onnx
from export.parity.graph_runs import bundle_path
from export.registry import architecture
from export.targets.cuda.float32_nodes import Islands
from export.targets.cuda.half_precision import halve
from export.targets.cuda.kernels import Kernels
from export.targets.tensorrt.checks import (
    TENSORRT,
    check_constants,
    check_operators,
    check_positions,
    operators,
)
from export.targets.tensorrt.lowering import check_profiles, for_tensorrt, with_profiles
from inference.bundle.manifest import Bundle, Graph, Limits, Profile, Role, Tensor
from inference.bundle.reader import newest_bundle
from inference.errors import SetupError
from serving.tensorrt.builder import Builds, Target, build_plan
from serving.tensorrt.plan_folder import PlanFolder
from tests.export.targets.cuda.bundles import node, save
from tests.export.targets.test_tensorrt import normalised, with_table
from tests.export.twin import EXPORTED
from tests.export.twins import build, generators, image_recipe, interface, lowerable, twin_of
from tests.tensorrt.conftest import CAPABILITY
from triptych.cli import run

pytestmark = pytest.mark.full

LSTM = {("rnn-seq2seq", "fp16"), ("rnn-seq2seq", "bf16")}
"""(architecture, precision) whose LSTM the parser refuses, as those of `operators.py`."""
ANY_SIZE = {"llava_next", "llava_onevision", "mllama", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"}
FIXED = [name for name in generators(has_source=True) if name not in ANY_SIZE]
"""Without the one whose images have any size, for which there is no profile."""
DIMENSIONS = {"S": "T", "I": "N"}
"""A source's positions have the range of an encoder's tokens, a prompt's images that of choices."""
UNLIMITED = Limits(max_input_tokens=40)
"""For a twin whose checkpoint has no limit on its source."""

Encoder = tuple[Path, Graph, frozenset[str]]
Encoders = Callable[[str], Encoder]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Encoders:
    """Architecture → its float32 file, its graph with profiles, its outputs that are states."""

    @cache
    def made(name: str) -> Encoder:
        graphs = interface(name)
        lowering = graphs.lowerings["admit"]
        path = tmp_path_factory.mktemp(name) / "admit.onnx"
        to_onnx(for_tensorrt(lowering), path)
        states = frozenset(s.admit_output for s in graphs.states if s.admit_output is not None)
        return path, planned(lowering.graph, build(name)[0].limits), states

    return made


def planned(graph: Graph, limits: Limits) -> Graph:
    """`admit` with the profiles of an encoder."""
    inputs = tuple(
        port.model_copy(update={"shape": tuple(DIMENSIONS.get(str(d), d) for d in port.shape)})
        for port in graph.inputs
    )
    graph = graph.model_copy(update={"inputs": inputs})
    limits = limits if limits.max_input_tokens else UNLIMITED
    found = with_profiles(graph, limits, "admit")
    check_profiles(found, limits, "admit")
    return found


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FIXED)
def test_admit_is_built(
    name: str, precision: str, encoders: Encoders, target: Target, tmp_path: Path
) -> None:
    path, graph, states = encoders(name)
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    check_operators(copy, "admit")
    if (name, precision) in LSTM:
        with pytest.raises(SetupError, match="kernel of LSTM at opset 20 in admit"):
            halve(copy, "admit", LOW[precision], states, TENSORRT)
        return
    if precision in LOW:
        halve(copy, "admit", LOW[precision], states, TENSORRT)
        check_constants(copy, "admit")
    assert build_plan(target, copy, graph.profiles)[0]


GENERATIVE = {"translate", "caption", "generate", "chat"}
STATELESS = [name for name in lowerable() if GENERATIVE.isdisjoint(architecture(name).tasks)]
RECURRENT = {"rnn-encoder"}
WIDER = {
    "mpnet": {"hidden_size": 48},
    "modernbert": {"hidden_size": 48},
    "deberta-v2": {"hidden_size": 48},
    "xlnet": {"d_model": 48},
}
"""Heads of width 16: TensorRT-RTX 1.7 fails inside on those of 10 with a bias, in low types."""
Files = Callable[[str], dict[Path, Graph]]
LOW = {"fp16": "float16", "bf16": "bfloat16"}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Architecture → its float32 files and graphs with profiles."""

    @cache
    def made(name: str) -> dict[Path, Graph]:
        folder = tmp_path_factory.mktemp(name)
        declared = architecture(name)
        config = declared.read_config({**twin_of(name).configs[EXPORTED], **WIDER.get(name, {})})
        limits, recipe = config.limits, image_recipe(declared, EXPORTED, config)
        if limits.max_input_tokens is None:  # a table of positions is not what limits it
            limits = Limits(max_input_tokens=40)
        found = {}
        lowerings = declared.graphs(declared.build(config).eval(), recipe).lowerings
        for key, lowering in lowerings.items():
            path = folder / f"{key}.onnx"
            to_onnx(for_tensorrt(lowering), path)
            found[path] = with_profiles(lowering.graph, limits, key)
        return found

    return made


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", STATELESS)
def test_architecture_is_built(
    name: str, precision: str, graphs: Files, target: Target, tmp_path: Path
) -> None:
    for path, graph in graphs(name).items():
        copy = tmp_path / path.name
        shutil.copy(path, copy)
        check_operators(copy, path.stem)
        if precision in LOW:
            if name in RECURRENT:
                with pytest.raises(SetupError, match="kernel of LSTM"):
                    halve(copy, path.stem, LOW[precision], frozenset(), TENSORRT)
                continue
            halve(copy, path.stem, LOW[precision], frozenset(), TENSORRT)
            check_constants(copy, path.stem)
        assert build_plan(target, copy, graph.profiles)[0]


EXAMPLES_STATELESS = (
    *("example-bert", "example-bert-answer", "example-bert-embed", "example-bert-rerank"),
    *("example-bert-sentiment", "example-bert-tags", "example-clip", "example-vit"),
)
GENERATORS = (
    *("example-captioner", "example-chat", "example-en-fr", "example-es-en", "example-gpt"),
    *("example-show-attend-tell", "example-vqa"),
)
EXAMPLES_RECURRENT = ("history-rnn-tagger", "history-rnn-sentiment")
PRECISIONS = ("fp32", "fp16", "bf16")
REFUSED = {
    **{(name, each): "kernel of LSTM" for name in EXAMPLES_RECURRENT for each in ("fp16", "bf16")},
    ("example-bert-answer", "bf16"): "bf16 changes text .* logits too much",  # texts of two tokens
}
BUILT = sorted({*product(EXAMPLES_STATELESS, PRECISIONS)} - REFUSED.keys())

Exported = Callable[[str, str], Bundle]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An example's bundle in a precision."""
    repository = tmp_path_factory.mktemp("models")

    @cache
    def export(name: str, precision: str) -> Bundle:
        bundle = f"{name}-{precision}"
        options = ["--device", "cuda", "--runtime", "tensorrt", "--precision", precision]
        where = ["--repository", str(repository), "--name", bundle]
        assert run(["export", str(checkpoint(name)), *options, *where]) == 0
        return newest_bundle(repository, bundle)

    return export


def test_every_example_is_here() -> None:
    found = {path.name for path in CHECKPOINTS.glob("example-*")}
    assert found == {*EXAMPLES_STATELESS, *GENERATORS}


@pytest.mark.parametrize(("name", "precision"), BUILT)
def test_graphs_are_built_with_all_their_profiles(
    name: str, precision: str, exported: Exported, target: Target, tmp_path: Path
) -> None:
    bundle, lines = exported(name, precision), list[str]()
    builds = Builds(PlanFolder(tmp_path), target, CAPABILITY, lines.append)
    plans = builds.ensure(bundle)
    assert plans.keys() == set(bundle.models)
    for plan in plans.values():
        assert plan.stat().st_size > 100_000
    assert builds.ensure(bundle) == plans
    assert sum("built the plan" in line for line in lines) == len(plans)


@pytest.mark.parametrize("name", EXAMPLES_RECURRENT)
def test_recurrent_classifiers_are_built_in_float32(
    name: str, exported: Exported, target: Target, tmp_path: Path
) -> None:
    builds = Builds(PlanFolder(tmp_path), target, CAPABILITY, lambda line: None)
    assert builds.ensure(exported(name, "fp32"))


@pytest.mark.parametrize(("name", "precision"), REFUSED)
def test_what_low_precision_changes_is_refused(
    name: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--device", "cuda", "--runtime", "tensorrt", "--precision", precision]
    where = ["--repository", str(tmp_path), "--name", "x"]
    assert run(["export", str(checkpoint(name)), *options, *where]) == 1
    assert re.search(REFUSED[name, precision], capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


ROWS = Profile(shapes={"x": ((1, 4), (8, 4), (64, 4))})
TOKENS = Graph(
    file="model.onnx",
    inputs=(
        Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
    ),
    outputs=(),
)


def test_committed_list_of_operators_is_the_parsers(library: Any) -> None:
    builder = library.Builder(library.Logger(library.Logger.ERROR))
    parser = library.OnnxParser(builder.create_network(0), library.Logger(library.Logger.ERROR))
    names = {schema.name for schema in defs.get_all_schemas() if schema.domain == ""}
    assert {name for name in names if parser.supports_operator(name)} == operators()


def test_operator_that_the_parser_lacks(target: Target, tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        [node("Multinomial", ["x"], "y", dtype=6, sample_size=1)],
        [("x", "float32", ["B", 4])],
        [("y", "int32", ["B", 1])],
    )
    with pytest.raises(SetupError, match=r"TensorRT cannot read model\.onnx: .*Multinomial"):
        build_plan(target, path, (ROWS,))
    with pytest.raises(SetupError, match="no operator for nodes of x: Multinomial"):
        check_operators(path, "x")


def test_fused_attention_of_onnx_runtime(target: Target, tmp_path: Path) -> None:
    """The graph of the CPU's bundle, which has no profiles either."""
    name = "example-bert-sentiment"
    assert run(["export", str(checkpoint(name)), "--repository", str(tmp_path)]) == 0
    bundle = newest_bundle(tmp_path, name)
    graph = with_profiles(bundle.manifest.graphs["text"], bundle.manifest.limits, "text")
    path = bundle_path(bundle, "text")
    with pytest.raises(SetupError, match=r"TensorRT cannot \w+ model\.onnx"):
        build_plan(target, path, graph.profiles)
    with pytest.raises(SetupError, match=r"com\.microsoft\.MultiHeadAttention"):
        check_operators(path, "text")


def test_profile_that_leaves_out_a_bucket_is_built_and_refused_by_us(
    target: Target, tmp_path: Path
) -> None:
    path = with_table(tmp_path / "model.onnx", is_gathered=False)
    graph = with_profiles(TOKENS, Limits(max_input_tokens=16), "text")
    narrow = tuple(
        Profile(
            shapes={
                name: (least, tuned, (largest[0], *(8 for _ in largest[1:])))
                for name, (least, tuned, largest) in profile.shapes.items()
            }
        )
        for profile in graph.profiles
    )
    assert build_plan(target, path, narrow)[0]
    cut = graph.model_copy(update={"profiles": narrow})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 1, T = 16"):
        check_profiles(cut, Limits(max_input_tokens=16), "text")


@pytest.mark.parametrize("is_gathered", [True, False])
def test_positions_beyond_the_table(is_gathered: bool, target: Target, tmp_path: Path) -> None:
    """TensorRT warns of a sliced table, which we make an error, and never of a gathered one."""
    path = with_table(tmp_path / "model.onnx", is_gathered=is_gathered)
    beyond = with_profiles(TOKENS, Limits(max_input_tokens=24), "text")
    if is_gathered:
        assert build_plan(target, path, beyond.profiles)[0]
    else:
        with pytest.raises(SetupError, match="has shapes that its graph cannot have"):
            build_plan(target, path, beyond.profiles)
    with pytest.raises(SetupError, match="text does not compute 24 tokens"):
        check_positions(path, beyond, "text")


def test_clamp_that_underflows_in_float16_is_built_and_refused_by_us(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Islands, "_go_forward", lambda self, index, node: None)
    path = normalised(tmp_path / "model.onnx")
    halve(path, "text", "float16", frozenset(), TENSORRT)
    assert build_plan(target, path, (ROWS,))[0]
    with pytest.raises(SetupError, match="is 0 in float16"):
        check_constants(path, "text")


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_lstm_of_a_low_type_is_refused_by_the_parser(
    low: str, target: Target, tmp_path: Path
) -> None:
    """With lengths, as ours are: why `operators.py` has recurrent operators in float32 alone."""
    profile = Profile(shapes={**ROWS.shapes, "lengths": ((1,), (8,), (64,))})
    weights = np.ones((1, 16, 4), np.float32)
    path = save(
        tmp_path / "model.onnx",
        [
            node("Unsqueeze", ["x", "first"], "sequence"),
            node("LSTM", ["sequence", "w", "w", "", "lengths"], ["h"], hidden_size=4),
            node("MatMul", ["h", "last"], "y"),
        ],
        [("x", "float32", ["B", 4]), ("lengths", "int32", ["B"])],
        [("y", "float32", [1, 1, "B", 4])],
        {"w": weights, "first": np.array([0]), "last": np.eye(4, dtype=np.float32)},
    )
    assert build_plan(target, path, (profile,))[0]
    halve(path, "text", low, frozenset(), Kernels("all", lambda *operator: True))
    with pytest.raises(SetupError, match=r"TensorRT cannot read model\.onnx"):
        build_plan(target, path, (profile,))


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"x": ((8, 4), (1, 4), (64, 4))}, "a profile of model.onnx is not valid"),
        ({"x": ((1, 4, 1), (8, 4, 1), (64, 4, 1))}, "TensorRT cannot build model.onnx"),
        ({"other": ((1, 4), (8, 4), (64, 4))}, "TensorRT cannot build model.onnx"),
        ({"x": ((1, 5), (8, 5), (64, 5))}, "model.onnx"),
    ],
)
def test_profile_that_is_wrong(
    shapes: dict[str, Any], reason: str, target: Target, tmp_path: Path
) -> None:
    path = normalised(tmp_path / "model.onnx")
    with pytest.raises(SetupError, match=reason):
        build_plan(target, path, (Profile(shapes=shapes),))
