"""Planted faults of the encoder-decoders for text must each fail twin and gate."""

from __future__ import annotations

import copy

import pytest

from export.verify import TOLERANCE, ParityError, verify
from tests.export.conftest import Bundles, Twins
from tests.export.faults import Fault
from tests.export.faults_seq2seq import FAULTS
from tests.export.test_planted_faults import worst

EVERY = [
    pytest.param(*place, fault, id=f"{'-'.join(place)}: {title}")
    for place, faults in FAULTS.items()
    for title, fault in faults.items()
]


@pytest.mark.parametrize(("name", "config", "fault"), EVERY)
def test_twin_differs_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    with fault(network):
        assert worst(twin, network) > TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(("name", "config", "fault"), EVERY)
def test_gate_fails_for_a_planted_fault(
    name: str, config: str, fault: Fault, twins: Twins, bundles: Bundles
) -> None:
    twin = twins(name, config)
    network = copy.deepcopy(twin.network)
    graphs = twin.architecture.graphs(network, twin.prepared.image)
    bundle = bundles(name, config)
    with fault(network), pytest.raises(ParityError, match="nothing was published"):
        verify(graphs, bundle)
