"""Copies of the device of addresses are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.runners.cuda.device import _run_options
from inference.engine.runners.cuda.graph_ids import UNCAPTURED
from inference.engine.runners.cuda.runtime import Direction
from inference.engine.runners.cuda.tensors import AddressedTensor
from inference.engine.state.device import EntryCopies, HostMemory
from tests.inference.engine.host_device import HostDevice

HOST = HostMemory()


def on(device: HostDevice, values: np.ndarray) -> AddressedTensor:
    kept = device.allocate(values.size, str(values.dtype))
    tensor = device.view(kept, values.shape)
    device.upload(values, tensor)
    return tensor


def numbered(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float16).reshape(shape)


SIZES = st.integers(1, 4)


@given(entries=SIZES, heads=SIZES, width=SIZES, data=st.data())
def test_positions_are_copied_between_layouts(
    entries: int, heads: int, width: int, data: st.DataObject
) -> None:
    device = HostDevice()
    long, short = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    source_start, target_start = data.draw(st.integers(0, long)), data.draw(st.integers(0, short))
    length = data.draw(st.integers(0, min(long - source_start, short - target_start)))
    read = numbered(entries, heads, long, width)
    written = numbered(entries, heads, short, width, start=1000)
    places = {"source_start": source_start, "target_start": target_start}
    source, target = on(device, read), on(device, written)
    device.copy(source, target, axis=2, length=length, **places)
    HOST.copy(read, written, axis=2, length=length, **places)
    np.testing.assert_array_equal(device.fetch(target), written)


@given(heads=SIZES, length=st.integers(1, 5), moves=st.permutations(range(4)))
def test_entries_are_copied_in_order(heads: int, length: int, moves: list[int]) -> None:
    device, values = HostDevice(), numbered(4, heads, 5, 2)
    tensor = on(device, values)
    pairs = [(moves[0], moves[1]), (moves[1], moves[2])]
    device.copy_entries(EntryCopies(tensor, tensor, pairs, axis=2, length=length))
    HOST.copy_entries(EntryCopies(values, values, pairs, axis=2, length=length))
    np.testing.assert_array_equal(device.fetch(tensor), values)


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_pairs_that_depend_on_each_other_are_not_in_one_batch(pairs: list[tuple[int, int]]) -> None:
    """The double runs a batch from its end."""
    device, first, second = HostDevice(), numbered(6, 2, 3), numbered(6, 2, start=500)
    tensors = [on(device, first), on(device, second)]
    device.copy_entries(*(EntryCopies(tensor, tensor, pairs) for tensor in tensors))
    HOST.copy_entries(*(EntryCopies(each, each, pairs) for each in (first, second)))
    np.testing.assert_array_equal(device.fetch(tensors[0]), first)
    np.testing.assert_array_equal(device.fetch(tensors[1]), second)


def test_sequences_share_batches() -> None:
    """Two beams of each move one after the other: two batches, however many sequences there are."""
    device = HostDevice()
    tensor = on(device, numbered(9, 2))
    pairs = [(slot + beam, slot + beam + 1) for slot in (0, 3, 6) for beam in (0, 1)]
    device.copy_entries(EntryCopies(tensor, tensor, pairs))
    assert device.runtime.batches == 2


def test_whole_entries_are_copied() -> None:
    device, values = HostDevice(), numbered(3, 4)
    tensor = on(device, values)
    device.copy_entries(EntryCopies(tensor, tensor, [(0, 2)]))
    values[2] = values[0]
    np.testing.assert_array_equal(device.fetch(tensor), values)


@given(source=st.integers(1, 6), target=st.integers(1, 6), data=st.data())
def test_entries_are_copied_between_layouts(source: int, target: int, data: st.DataObject) -> None:
    device = HostDevice()
    length = data.draw(st.integers(0, min(source, target)))
    read, written = numbered(2, 3, source, 2), numbered(3, 3, target, 2, start=500)
    one, other = on(device, read), on(device, written)
    device.copy_entries(EntryCopies(one, other, [(1, 2)], axis=2, length=length))
    HOST.copy_entries(EntryCopies(read, written, [(1, 2)], axis=2, length=length))
    np.testing.assert_array_equal(device.fetch(other), written)


@pytest.mark.parametrize(("axis", "start"), [(None, 0), (2, 0), (2, 3), (2, 5), (1, 1)])
def test_zeroed_are_the_positions_from_the_start_on(axis: int | None, start: int) -> None:
    device, values = HostDevice(), numbered(3, 2, 5, 4, start=1)
    tensor = on(device, values)
    device.zero(tensor, axis=axis, start=start)
    HOST.zero(values, axis=axis, start=start)
    np.testing.assert_array_equal(device.fetch(tensor), values)


def test_entry_range_shares_memory() -> None:
    device, values = HostDevice(), numbered(4, 3)
    tensor = on(device, values)
    device.zero(device.entries(tensor, 1, 3))
    values[1:3] = 0
    np.testing.assert_array_equal(device.fetch(tensor), values)


def test_row_copy_is_one_call() -> None:
    device = HostDevice()
    tensor = on(device, numbered(4, 8, 16, 4))
    before = device.runtime.copies[Direction.ON_DEVICE]
    device.copy_entries(EntryCopies(tensor, tensor, [(0, 3)], axis=2, length=9))
    assert device.runtime.copies[Direction.ON_DEVICE] == before + 1


def test_copy_beyond_a_tensor_is_refused() -> None:
    device = HostDevice()
    tensor = on(device, numbered(2, 1, 4, 2))
    with pytest.raises(AssertionError):
        device.copy(tensor, tensor, axis=2, length=5)
    for pairs, length in (([(0, 1)], 5), ([(0, 2)], 1), ([(2, 0)], 1)):
        with pytest.raises(AssertionError):
            device.copy_entries(EntryCopies(tensor, tensor, pairs, axis=2, length=length))


def test_new_memory_is_zero_though_it_was_used() -> None:
    device = HostDevice()
    on(device, numbered(100, start=1))
    assert not device.fetch(device.allocate(100, "float16")).any()


def test_bfloat16_is_fetched_as_float32() -> None:
    device = HostDevice()
    values = np.array([1.0, -2.5, 0.0, np.inf], np.float32)
    tensor = device.allocate(4, "bfloat16")
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    raw = AddressedTensor(tensor.owner, tensor.address, (4,), "uint16")
    device.upload(bits, raw)
    np.testing.assert_array_equal(device.fetch(tensor), values)
    assert tensor.nbytes == 8


@pytest.mark.parametrize("size", [3, 5000])  # in page-locked memory, and beyond it
def test_fetched_arrays_keep_their_values(size: int) -> None:
    device = HostDevice()
    values = [numbered(size, start=start) for start in (0, 7)]
    tensors = [on(device, each) for each in values]
    device.fetch(tensors[0])  # what follows begins at the start of the page-locked memory
    fetched = device.fetch_all(tensors)
    device.upload(np.zeros_like(values[0]), tensors[0])
    device.fetch(tensors[0])
    for array, wanted in zip(fetched, values, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("graph_id", [UNCAPTURED, 1])
def test_runs_that_are_not_captured_wait_for_the_device(graph_id: int) -> None:
    """Else ONNX Runtime may free page-locked memory where CUDA does not permit it."""
    options = _run_options(graph_id)
    assert options.get_run_config_entry("gpu_graph_id") == str(graph_id)
    if graph_id == UNCAPTURED:
        with pytest.raises(RuntimeError):
            options.get_run_config_entry("disable_synchronize_execution_providers")
    else:
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"


def test_small_blocks_are_reused_and_large_ones_freed() -> None:
    device = HostDevice()
    addresses = set()
    for _ in range(10):
        addresses.add(device.allocate(100, "float32").address)
    assert len(addresses) == 1
    large = device.allocate(1 << 20, "float32")
    held = device.runtime.allocated_bytes
    del large
    assert device.runtime.allocated_bytes == held - (4 << 20)
    device.trim()
    assert not device.runtime.allocated_bytes
