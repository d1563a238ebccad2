"""The gate, and the twins, must fail for every mistake: a check that cannot fail proves nothing."""

from __future__ import annotations

import copy
import math

import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.layers.attention import Attention
from export.registry import families
from export.twin import EXPORTED
from export.verify import TOLERANCE, ParityError, bundle_path, verify
from serving.bundle import Bundle
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.faults import GENERAL_FAULTS, OWN_FAULTS, Fault
from tests.export.oracle import compare, difference
from tests.export.twins import build

FAULTS = [
    pytest.param(name, fault, id=f"{name}: {title}")
    for name, faults in OWN_FAULTS.items()
    for title, fault in faults.items()
]


@pytest.mark.parametrize("name", families())
def test_twin_differs_when_any_parameter_does(name: str, twins: Twins) -> None:
    """Otherwise a wrong weight would pass: it is unused, or the twin cannot detect it."""
    twin = twins(name, EXPORTED)
    unnoticed = []
    for path, _ in twin.network.named_parameters():
        network = copy.deepcopy(twin.network)
        disturb(network.get_parameter(path))
        if worst(twin, network) <= TOLERANCE and not may_be_unnoticed(twin.network, path):
            unnoticed.append(path)
    assert unnoticed == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (name, fault)
        for name in families()
        for fault, plant in GENERAL_FAULTS.items()
        if plant(build(name)[1])
    ],
)
def test_twin_differs_for_a_general_fault(name: str, fault: str, twins: Twins) -> None:
    twin = twins(name, EXPORTED)
    network = copy.deepcopy(twin.network)
    assert GENERAL_FAULTS[fault](network)
    assert worst(twin, network) > TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", families())
def test_gate_fails_for_a_disturbed_weight(name: str, twins: Twins, bundles: Bundles) -> None:
    twin = twins(name, EXPORTED)
    graphs = twin.architecture.graphs(network := copy.deepcopy(twin.network), twin.prepared.image)
    matrices = [weight for weight in network.parameters() if weight.ndim == 2]
    disturb(matrices[-1])
    with pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundles(name, EXPORTED))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_gate_fails_for_a_planted_fault(
    name: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, EXPORTED)
    network = copy.deepcopy(twin.network)
    graphs = twin.architecture.graphs(network, twin.prepared.image)
    bundle = bundles(name, EXPORTED)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_twin_differs_for_a_planted_fault(name: str, fault: Fault, twins: Twins) -> None:
    twin = twins(name, EXPORTED)
    network = copy.deepcopy(twin.network)
    with fault(network):
        assert worst(twin, network) > TOLERANCE


def worst(twin: TwinPair, network: nn.Module) -> float:
    """The largest difference from the reference; infinite for NaN."""
    found = [difference(want, got) for _, want, got in compare(twin, network)]
    return max(float("inf") if math.isnan(value) else value for value in found)


def disturb(parameter: torch.Tensor) -> None:
    """Changes every value, by amounts that differ."""
    with torch.no_grad():
        parameter.add_(torch.linspace(0.1, 0.3, parameter.numel()).view(parameter.shape))


def may_be_unnoticed(network: nn.Module, path: str) -> bool:
    """Whether a parameter has mathematically no effect.

    A key's bias adds the same to every score of a query; softmax takes it away. A parameter
    directly below the network is no part of a graph (a logit scale goes into the manifest).
    """
    owner = network.get_submodule(path.rpartition(".")[0].rpartition(".")[0])
    return (path.endswith(".key.bias") and isinstance(owner, Attention)) or "." not in path


@pytest.mark.slow
def test_gate_fails_for_a_weight_that_export_changed(
    twins: Twins, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = bundles("clip", "odd")
    stage = tmp_path_factory.mktemp("changed")
    for key in good.manifest.graphs:
        model = onnx.load(str(bundle_path(good, key)))
        if key == "text":
            weight = max(model.graph.initializer, key=lambda tensor: tensor.ByteSize())
            values = numpy_helper.to_array(weight).copy()
            values[..., ::2] += 1e-3  # not all: a norm would take a constant away
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        folder = stage / good.manifest.parts[key]
        folder.mkdir()
        onnx.save_model(model, str(folder / "model.onnx"))
    changed = Bundle(stage / good.manifest.name, good.manifest)
    with pytest.raises(ParityError, match="text"):
        verify(twins("clip", "odd").graphs(), changed)
