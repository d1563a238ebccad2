"""Twins of image-and-text models differ from their reference for every planted fault."""

from __future__ import annotations

import copy

import pytest

from export.verify import TOLERANCE, ParityError, verify
from tests.export import faults_joint, faults_open_clip
from tests.export.conftest import Bundles, Twins
from tests.export.faults import Fault
from tests.export.test_planted_faults import disturb, may_be_unnoticed, worst

FAULTS = faults_joint.FAULTS | faults_open_clip.FAULTS
PLANTED = [
    pytest.param(*place, fault, id=f"{'-'.join(place)}: {title}")
    for place, faults in FAULTS.items()
    for title, fault in faults.items()
]


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
