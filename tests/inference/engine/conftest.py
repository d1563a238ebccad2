"""Tests over real graphs run on two devices."""

from __future__ import annotations

import pytest

from inference.engine.runners.ort.device import CpuDevice
from inference.engine.state.device import Device
from tests.inference.engine.host_device import HostDevice


@pytest.fixture(scope="module", params=[CpuDevice, HostDevice], ids=["cpu", "host"])
def device(request: pytest.FixtureRequest) -> Device:
    """The device of a runner's states and logits."""
    return request.param()
