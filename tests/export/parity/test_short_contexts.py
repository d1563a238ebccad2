"""The gate on checkpoints of few positions: its own prompts must end within them."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.parity.token_parity import mixed_requests
from export.parity.verify import verify
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.manifest import Bundle, Manifest
from tests.export.conftest import TwinPair, Twins, export_graphs

FUSED = ("llama", "rotated by the operator")
"""GroupQueryAttention reads a table of 32 positions, and refuses calls beyond it."""


def manifest_of(twin: TwinPair) -> Manifest:
    return build_manifest(Request("twin"), 1, twin.source, twin.graphs())[0]


@pytest.mark.parametrize("positions", [4, 12, 32])
def test_prompts_of_the_gate_end_within_the_positions(positions: int, twins: Twins) -> None:
    twin = twins(*FUSED)
    manifest = manifest_of(twin)
    limits = {"max_input_tokens": positions - 1, "max_total_tokens": positions}
    short = manifest.model_copy(update={"limits": manifest.limits.model_copy(update=limits)})
    for request in mixed_requests(short, 1):
        assert 0 < len(request.prompt_ids) < positions
        assert 0 < request.rules.max_new_tokens <= positions - len(request.prompt_ids)


@pytest.mark.slow
def test_network_of_few_positions_that_the_operator_rotates_passes(
    twins: Twins, tmp_path: Path
) -> None:
    twin = twins(*FUSED)
    manifest = manifest_of(twin)
    export_graphs(twin.graphs(), manifest, tmp_path)
    assert verify(twin.graphs(), Bundle(tmp_path / manifest.name, manifest)).tokens["compared"]
