"""Twins of image encoders differ from their reference for every planted fault, and the gate too."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from export.twin import EXPORTED
from export.verify import TOLERANCE, ParityError, verify
from tests.export.conftest import Bundles, TwinPair, Twins
from tests.export.faults import Fault
from tests.export.faults_vision import FAULTS
from tests.export.oracle import compare, difference

PLANTED = [
    pytest.param(*place, fault, id=f"{'-'.join(place)}: {title}")
    for place, faults in FAULTS.items()
    for title, fault in faults.items()
]
EXPORTED_FAULTS = [each for each in PLANTED if each.values[1] == EXPORTED]


def planted(twin: TwinPair) -> tuple[Any, Any]:
    """A copy of the network, prepared, and its graphs: a fault changes what is prepared too."""
    network = copy.deepcopy(twin.network)
    return network, twin.architecture.graphs(network, twin.prepared.image)


@pytest.mark.parametrize(("name", "config", "fault"), PLANTED)
def test_twin_differs_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins
) -> None:
    twin = twins(name, config)
    network, graphs = planted(twin)
    with fault(network):
        found = [difference(want, got) for _, want, got in compare(twin, graphs=graphs)]
    assert max(found) > TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "fault"), EXPORTED_FAULTS)
def test_gate_fails_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, config)
    network, graphs = planted(twin)
    bundle = bundles(name, config)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)
