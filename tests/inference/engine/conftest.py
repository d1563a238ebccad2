"""Tests over real graphs run on two devices."""

from __future__ import annotations

import pytest

from inference.engine.runners.ort.device import CpuDevice, OrtDevice
from tests.inference.engine.host_device import HostDevice


@pytest.fixture(scope="module", params=[CpuDevice, HostDevice], ids=["cpu", "host"])
def device(request: pytest.FixtureRequest) -> OrtDevice:
    """The device of a runner's states and logits."""
    return request.param()
