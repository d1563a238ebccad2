"""Every head of every text encoder passes the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.parity.judge import TOLERANCE
from export.parity.verify import verify
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.faults import faults_encoders, faults_perceiver
from tests.export.twins import twin_of

FAULTS = faults_encoders.FAULTS | faults_perceiver.FAULTS
ENCODERS = tuple(dict.fromkeys(name for name, _ in FAULTS))
HEADS = [(name, config) for name in ENCODERS for config in twin_of(name).configs]


@pytest.mark.full
@pytest.mark.parametrize(("name", "config"), HEADS)
def test_every_head_passes_the_gate_in_both_precisions(
    name: str, config: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    twin, bundle = twins(name, config), bundles(name, config)
    assert verify(twin.graphs(), bundle).worst_difference < TOLERANCE
    lowered(bundle, twin, tmp_path)  # raises if int8 is too far off, or a row depends on others
