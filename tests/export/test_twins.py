"""Networks against `transformers` or their paper, eager; and their ONNX graphs against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from export.architecture import Lowering
from export.graphs.decompositions import traced_once
from export.graphs.to_onnx import dynamic_shapes, example_inputs, to_onnx
from export.parity.judge import TOLERANCE
from export.parity.verify import verify
from export.registry import architecture, families
from inference.errors import CheckpointError
from tests.export.conftest import TRACED, Bundles, Twins
from tests.export.operators import has_translation
from tests.export.oracle import compare, difference
from tests.export.twin import EXPORTED
from tests.export.twins import every_config


@pytest.mark.parametrize(("name", "config"), every_config())
def test_network_computes_what_its_reference_computes(name: str, config: str, twins: Twins) -> None:
    compared = list(compare(twins(name, config)))
    assert compared
    for place, want, got in compared:
        assert difference(want, got) < TOLERANCE, place


@pytest.mark.parametrize("name", sorted(TRACED))
def test_trace_computes_what_the_reference_computes(name: str, twins: Twins) -> None:
    """At other sizes than those of tracing; nothing is made ONNX, but every operator could be."""
    twin = twins(name, EXPORTED)
    graphs = twin.graphs()
    lowerings = {key: traced(lowering) for key, lowering in graphs.lowerings.items()}
    for place, want, got in compare(twin, graphs=replace(graphs, lowerings=lowerings)):
        assert difference(want, got) < TOLERANCE, place


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blip", "git", pytest.param("bart", marks=pytest.mark.full)])
def test_graphs_with_a_source_have_dynamic_sizes(name: str, twins: Twins, tmp_path: Path) -> None:
    """`to_onnx` refuses a size that the network freezes; BART's stacks are served as NLLB."""
    lowerings = twins(name, EXPORTED).graphs().lowerings
    for key in lowerings.keys() - {"align"}:  # the same decoder
        to_onnx(lowerings[key], tmp_path / lowerings[key].graph.file)


def traced(lowering: Lowering) -> Lowering:
    """The same graph, computed by what `torch.export` recorded of its module."""
    module, graph = lowering.module.eval(), lowering.graph
    with torch.no_grad(), traced_once():
        program = torch.export.export(
            module,
            example_inputs(graph, lowering.traced_sizes),
            dynamic_shapes=dynamic_shapes(module, graph),
            strict=False,
        )
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert [target for target in calls if not has_translation(target)] == []
    return replace(lowering, module=program.module())


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_graphs_compute_what_the_network_computes(
    name: str, twins: Twins, bundles: Bundles
) -> None:
    graphs = twins(name, EXPORTED).graphs()
    report = verify(graphs, bundles(name, EXPORTED))
    # of a stateless graph: three shapes of a batch, and four rows alone
    count = len(graphs.lowerings)
    assert report.observations >= (10 if "step" in graphs.lowerings else 7 * count)
    assert report.worst_difference < TOLERANCE


def test_unknown_model_type_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(CheckpointError, match="'mamba' is not supported; supported are: marian"):
        architecture("mamba")
