"""Tests over real graphs run on two devices."""

from __future__ import annotations

import pytest

from serving.engine.runners.ort.device import CpuDevice, OrtDevice
from tests.serving.engine.opaque_device import OpaqueDevice


@pytest.fixture(scope="module", params=[CpuDevice, OpaqueDevice], ids=["cpu", "opaque"])
def device(request: pytest.FixtureRequest) -> OrtDevice:
    """The device of a runner's states and logits."""
    return request.param()
