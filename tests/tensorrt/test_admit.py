"""The graph `admit` of every generator that has one is parsed and built, with profiles.

Engines run it with ONNX Runtime (D70); this shows what TensorRT could run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from export.graphs.to_onnx import to_onnx
from export.targets.cuda.half_precision import halve
from export.targets.tensorrt.checks import check_constants
from export.targets.tensorrt.lowering import for_tensorrt
from export.targets.tensorrt.operators import TENSORRT, check_operators
from export.targets.tensorrt.profiles import check_profiles, with_profiles
from inference.bundle.manifest import Graph, Limits
from inference.errors import SetupError
from serving.tensorrt.builder import Target, build_plan
from tests.export.twins import build, generators, interface
from tests.tensorrt.test_architectures import LOW

pytestmark = pytest.mark.full

LSTM = {("rnn-seq2seq", "fp16"), ("rnn-seq2seq", "bf16")}
"""(architecture, precision) whose LSTM the parser refuses, as those of `operators.py`."""
ANY_SIZE = {"llava_next", "qwen2_vl", "qwen2_5_vl"}
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
