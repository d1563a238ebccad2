"""The runner for a card, over host memory, decodes exported float16 bundles as the CPU's does."""

from __future__ import annotations

import pytest

from export.parity.token_parity import mixed_requests
from export.precision import Precision
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from tests.export.targets.cuda.conftest import CudaBundles
from tests.export.twins import lowerable
from tests.inference.engine.host_device import HostDevice

QUICK = {"marian"}
"""In `make test`: it has both kinds of attention."""


def _families() -> list[object]:
    slow = [pytest.param(name, marks=pytest.mark.full) for name in lowerable() if name not in QUICK]
    return [*sorted(QUICK), *slow]


@pytest.mark.parametrize("name", _families())
def test_card_gives_the_cpu_tokens(name: str, cuda_bundles: CudaBundles) -> None:
    bundle, _ = cuda_bundles(name, Precision.FP16)
    if bundle.manifest.generator is None:
        pytest.skip("no generator")
    device = HostDevice()
    card, cpu = OrtRunner(bundle, 1, device=device), make_runner(bundle, threads=1)
    for beams in (1, 4):
        requests = mixed_requests(bundle.manifest, beams)
        for capacity in (Capacity(), Capacity(rows=beams)):  # together, and one by one
            given, wanted = (decode(each, requests, capacity) for each in (card, cpu))
            for one, other in zip(given, wanted, strict=True):
                tokens = [[h.token_ids for h in each.hypotheses] for each in (one, other)]
                assert tokens[0] == tokens[1]
    assert device.replayed
