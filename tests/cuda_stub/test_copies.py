"""Copies by libcudart: the stub's memory is the host's, so they have numbers."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.runners.cuda.device import CudaDevice
from inference.engine.state.device import EntryCopies, HostMemory
from tests.cuda_stub.stub_library import Stub


@pytest.mark.parametrize("has_batches", [True, False])
def test_rows_of_several_states_are_copied(stub: Stub, has_batches: bool) -> None:
    device, host = CudaDevice(), HostMemory()
    assert device.runtime._has_batches, "the stub is CUDA 13's"
    device.runtime._has_batches = has_batches
    values = [np.random.rand(6, 3, 8, 4).astype(np.float16), np.random.rand(6, 5).astype("f4")]
    tensors = []
    for each in values:
        tensor = device.view(device.allocate(each.size, str(each.dtype)), each.shape)
        device.upload(each, tensor)
        tensors.append(tensor)
    pairs, places = [(0, 1), (0, 2), (5, 4)], ((2, 5), (None, 0))
    before = stub.read()
    for memory, states in ((device, tensors), (host, values)):
        memory.copy_entries(
            *(
                EntryCopies(each, each, pairs, *place)
                for each, place in zip(states, places, strict=True)
            )
        )
    found = stub.read() - before
    assert (found.batches, found.device_to_device) == ((1, 0) if has_batches else (0, 6))
    for tensor, wanted in zip(tensors, values, strict=True):
        np.testing.assert_array_equal(device.fetch(tensor), wanted)
