"""Twins of text encoders, and the gate, fail for every planted fault; every head passes it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from export.registry import architecture
from export.verify import TOLERANCE, ParityError, verify
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.faults import Fault
from tests.export.faults_encoders import FAULTS
from tests.export.test_planted_faults import disturb, may_be_unnoticed, worst

PLANTED = [
    pytest.param(*place, fault, id=f"{'-'.join(place)}: {title}")
    for place, faults in FAULTS.items()
    for title, fault in faults.items()
]
ENCODERS = tuple(dict.fromkeys(name for name, _ in FAULTS))
HEADS = [(name, config) for name in ENCODERS for config in architecture(name).twin.configs]


@pytest.mark.parametrize(("name", "config", "fault"), PLANTED)
def test_twin_differs_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    with fault(network):
        assert worst(twin, network) > TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(("name", "config", "fault"), PLANTED)
def test_gate_fails_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    graphs = twin.architecture.graphs(network, twin.prepared.image)
    bundle = bundles(name, config)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)


@pytest.mark.full
@pytest.mark.parametrize(("name", "config"), HEADS)
def test_every_head_passes_the_gate_in_both_precisions(
    name: str, config: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    twin, bundle = twins(name, config), bundles(name, config)
    assert verify(twin.graphs(), bundle).worst_difference < TOLERANCE
    lowered(bundle, twin, tmp_path)  # raises if int8 is too far off, or a row depends on others


@pytest.mark.parametrize(("name", "config"), FAULTS)
def test_twin_differs_when_any_parameter_does(name: str, config: str, twins: Twins) -> None:
    twin = twins(name, config)
    unnoticed = []
    for path, _ in twin.network.named_parameters():
        network = copy.deepcopy(twin.network)
        disturb(network.get_parameter(path))
        if worst(twin, network) <= TOLERANCE and not may_be_unnoticed(twin.network, path):
            unnoticed.append(path)
    assert unnoticed == []
