"""Everything that runs real graphs runs on two devices."""

from __future__ import annotations

import pytest

from serving.engine.runners.ort.device import CpuDevice, OrtDevice
from tests.serving.engine.opaque_device import OpaqueDevice


@pytest.fixture(scope="module", params=[CpuDevice, OpaqueDevice], ids=["cpu", "opaque"])
def device(request: pytest.FixtureRequest) -> OrtDevice:
    """Where a runner's states and logits live."""
    return request.param()
