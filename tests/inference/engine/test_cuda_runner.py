"""The CUDA runner over host memory: copies, captured steps, and what a machine lacks.

`HostDevice` replays a graph as a card does, so a wrong id gives other tokens here too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode
from inference.engine.request import EngineRequest, Event, Failed
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.cuda import installation, runtime
from inference.engine.runners.cuda.device import _run_options
from inference.engine.runners.cuda.runtime import CudaRuntime, Direction
from inference.engine.runners.cuda.tensors import AddressedTensor, GraphIds
from inference.engine.runners.ort.bound_graph import BoundGraph
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.engine.state.device import UNCAPTURED, EntryCopies
from inference.errors import DeviceError, InternalError, Overloaded
from inference.generation import Finished, Generation, TokenChunk
from tests.inference.engine.fake_runner import finish
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.test_ort_runner import BUILDERS, requests, tokens
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    halved,
    language_bundle,
    recurrent_bundle,
)

HOST = CpuDevice()


def on(device: HostDevice, values: np.ndarray) -> AddressedTensor:
    kept = device.allocate(values.size, str(values.dtype))
    tensor = device.view(kept, values.shape)
    device.upload(values, tensor)
    return tensor


def numbered(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float16).reshape(shape)


SIZES = st.integers(1, 4)
SPANS = st.lists(st.integers(0, 5), min_size=2, max_size=2).map(lambda ends: tuple(sorted(ends)))


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


@given(heads=SIZES, spans=st.lists(SPANS, min_size=2, max_size=2), moves=st.permutations(range(4)))
def test_entries_are_copied_in_order(
    heads: int, spans: list[tuple[int, int]], moves: list[int]
) -> None:
    device, values = HostDevice(), numbered(4, heads, 5, 2)
    tensor = on(device, values)
    pairs = [(moves[0], moves[1]), (moves[1], moves[2])]
    device.copy_entries(EntryCopies([tensor], [tensor], pairs, axis=2, spans=spans))
    wanted = values.copy()
    for (source, target), (start, stop) in zip(pairs, spans, strict=True):
        wanted[target, :, start:stop] = wanted[source, :, start:stop]
    HOST.copy_entries(EntryCopies([values], [values], pairs, axis=2, spans=spans))
    np.testing.assert_array_equal(device.fetch(tensor), wanted)
    np.testing.assert_array_equal(values, wanted)


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_pairs_that_depend_on_each_other_are_not_in_one_batch(pairs: list[tuple[int, int]]) -> None:
    """The double runs a batch from its end."""
    device, first, second = HostDevice(), numbered(6, 2, 3), numbered(6, 2, start=500)
    tensors = [on(device, first), on(device, second)]
    device.copy_entries(*(EntryCopies([tensor], [tensor], pairs) for tensor in tensors))
    HOST.copy_entries(*(EntryCopies([each], [each], pairs) for each in (first, second)))
    np.testing.assert_array_equal(device.fetch(tensors[0]), first)
    np.testing.assert_array_equal(device.fetch(tensors[1]), second)


def test_sequences_share_batches() -> None:
    """Two beams of each move one after the other: two batches, however many sequences there are."""
    device = HostDevice()
    tensor = on(device, numbered(9, 2))
    pairs = [(slot + beam, slot + beam + 1) for slot in (0, 3, 6) for beam in (0, 1)]
    device.copy_entries(EntryCopies([tensor], [tensor], pairs))
    assert device.runtime.batches == 2


def test_whole_entries_are_copied() -> None:
    device, values = HostDevice(), numbered(3, 4)
    tensor = on(device, values)
    device.copy_entries(EntryCopies([tensor], [tensor], [(0, 2)]))
    values[2] = values[0]
    np.testing.assert_array_equal(device.fetch(tensor), values)


@given(source=st.integers(1, 6), target=st.integers(1, 6), data=st.data())
def test_entries_are_copied_between_layouts(source: int, target: int, data: st.DataObject) -> None:
    device = HostDevice()
    length = data.draw(st.integers(0, min(source, target)))
    read, written = numbered(2, 3, source, 2), numbered(3, 3, target, 2, start=500)
    one, other = on(device, read), on(device, written)
    device.copy_entries(EntryCopies([one], [other], [(1, 2)], axis=2, spans=[(0, length)]))
    HOST.copy_entries(EntryCopies([read], [written], [(1, 2)], axis=2, spans=[(0, length)]))
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
    device.copy_entries(EntryCopies([tensor], [tensor], [(0, 3)], axis=2, spans=[(0, 9)]))
    assert device.runtime.copies[Direction.ON_DEVICE] == before + 1


def test_copy_beyond_a_tensor_is_refused() -> None:
    device = HostDevice()
    tensor = on(device, numbered(2, 1, 4, 2))
    with pytest.raises(AssertionError):
        device.copy(tensor, tensor, axis=2, length=5)
    for pairs, length in (([(0, 1)], 5), ([(0, 2)], 1), ([(2, 0)], 1)):
        copies = EntryCopies([tensor], [tensor], pairs, axis=2, spans=[(0, length)])
        with pytest.raises(AssertionError):
            device.copy_entries(copies)


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


CAPACITY = Capacity(rows=16)


@pytest.mark.parametrize("build", BUILDERS)
def test_replayed_steps_give_the_cpu_tokens(
    build: Callable[[Path], Bundle], tmp_path: Path
) -> None:
    bundle, device = halved(build(tmp_path)), HostDevice()
    runner = OrtRunner(bundle, 1, device=device)
    wanted = tokens(decode(OrtRunner(bundle, 1), requests(bundle, 40), CAPACITY))
    for _ in range(2):  # the second time on the arenas that the first one left
        assert tokens(decode(runner, requests(bundle, 40), CAPACITY)) == wanted
    assert device.captured
    assert device.replayed


@pytest.mark.parametrize("build", BUILDERS)
def test_same_load_is_not_captured_again(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    bundle, device = build(tmp_path), HostDevice()
    runner = OrtRunner(bundle, 1, device=device)
    for _ in range(4):  # until every arena has its size and every layout has recurred
        decode(runner, requests(bundle, 40), CAPACITY)
    captured = device.captured
    decode(runner, requests(bundle, 40), CAPACITY)
    assert device.captured == captured


def test_stale_addresses_would_give_other_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that `GraphIds` prevents: one id for every layout of as many rows."""
    bundle = language_bundle(tmp_path)
    wanted = tokens(decode(OrtRunner(bundle, 1), requests(bundle), CAPACITY))
    addresses = BoundGraph._addresses
    monkeypatch.setattr(BoundGraph, "_addresses", lambda self: len(addresses(self)[0][2]))
    runner = OrtRunner(bundle, 1, device=HostDevice())
    try:
        found = tokens(decode(runner, requests(bundle), CAPACITY))
    except InternalError:  # a token that was read from freed memory
        return
    assert found != wanted


@pytest.mark.parametrize("width", [1, 3])
def test_rows_are_bound_in_sizes_that_recur(tmp_path: Path, width: int) -> None:
    """Five sequences are bound as six: the sixth's rows write nothing that is read."""
    bundle, seen = language_bundle(tmp_path), set[int]()
    runner, plain = OrtRunner(bundle, 1, device=HostDevice()), OrtRunner(bundle, 1)
    kept = GraphIds.of

    def noted(self: GraphIds, bound: tuple[tuple[str, int, tuple[int, ...]], ...]) -> int:
        seen.add(next(shape[0] for name, _, shape in bound[:-1] if name == "tokens"))
        return kept(self, bound)

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphIds, "of", noted)
        for each in (runner, plain):
            group = each.group(width)
            prompts = [Prompt(np.arange(1, 4 + n)) for n in range(5)]
            group.admit(prompts, [plain_request(2)] * 5)
            sources = [slot * width for slot in range(5) for _ in range(width - 1)]
            group.copy(sources, [slot * width + n for slot in range(5) for n in range(1, width)])
            given = [np.full(5 * width, token) for token in range(8)]
            found.append([group.step(each, [plain_request(2)] * 5 * width) for each in given])
            joined = group.admit([Prompt(np.array([2, 3]))], [plain_request(2)])
            found[-1].append(joined)
    assert seen == {6 * width}
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=1e-5)


def test_total_is_the_size_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen in a graph, it must hold for every length in the bucket."""
    runner = OrtRunner(language_bundle(tmp_path), 1, device=HostDevice())
    group = runner.group(1)
    group.admit([Prompt(np.array([1, 2, 3]))], [plain_request(1)])
    totals: list[int] = []
    kept = GraphIds.of

    def noted(self: GraphIds, bound: tuple[int, ...]) -> int:
        totals.append(bound[-1])
        return kept(self, bound)

    monkeypatch.setattr(GraphIds, "of", noted)
    for token in range(3):
        group.step(np.array([token]), [plain_request(1)])
    assert set(totals) == {16}


def test_arenas_keep_their_addresses(tmp_path: Path) -> None:
    """Growing and shrinking within a buffer moves nothing; the next group has the same one."""
    runner = OrtRunner(attention_bundle(tmp_path), 1, device=HostDevice())

    def addresses(length: int) -> tuple[int, ...]:
        group = runner.group(1)
        prompt = Prompt(np.arange(length) % VOCABULARY, np.arange(length) % VOCABULARY)
        group.admit([prompt], [plain_request(1)])
        state = group._state
        found = tuple(arena._cells.address for arena in (*state._per_row, *state._held))
        group.release()
        return found

    largest = addresses(200)
    assert addresses(20) == addresses(150) == addresses(1) == largest
    assert addresses(400) != largest


def test_recurrent_state_of_a_replayed_step_moves_on(tmp_path: Path) -> None:
    bundle, found = recurrent_bundle(tmp_path), []
    for runner in (OrtRunner(bundle, 1, device=HostDevice()), OrtRunner(bundle, 1)):
        group = runner.group(1)
        pixels = np.full((2, 2, 3), 200, np.uint8)
        group.admit([Prompt(np.array([0]), pixels=pixels)], [plain_request(3)])
        steps = [group.step(np.array([token]), [plain_request(3)]) for token in range(10)]
        found.append([step.log_probs for step in steps])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_too_little_device_memory_fails_newcomers_alone(tmp_path: Path) -> None:
    """Those that run keep their state, and their tokens."""
    bundle = language_bundle(tmp_path)
    device = HostDevice()
    group = OrtRunner(bundle, 1, device=device).group(1)
    group.admit([Prompt(np.array([1, 2]))], [plain_request(1)])
    device.runtime.capacity_bytes = device.runtime.allocated_bytes
    with pytest.raises(MemoryError, match="are more than are free"):
        group.admit([Prompt(np.zeros(500, np.int64))] * 8, [plain_request(1)] * 8)
    after = [group.step(np.array([t]), [plain_request(1)]).token_ids for t in range(4)]
    plain = OrtRunner(bundle, 1).group(1)
    plain.admit([Prompt(np.array([1, 2]))], [plain_request(1)])
    wanted = [plain.step(np.array([t]), [plain_request(1)]).token_ids for t in range(4)]
    np.testing.assert_array_equal(after, wanted)


class Caller:
    """A request in an engine, and its last event."""

    def __init__(self, decoder: EngineCore, new_tokens: int, prompt: int = 3) -> None:
        rules = Generation(max_new_tokens=new_tokens, eos_token_ids=(), pad_token_id=0)
        self.events: list[Event] = []
        request = EngineRequest(rules, prompt_ids=(3,) * prompt)
        decoder.add(SequenceState(request, self.events.append))

    @property
    def end(self) -> Event:
        return next(event for event in self.events if not isinstance(event, TokenChunk))


@pytest.mark.parametrize("is_newcomer", [True, False])
def test_engine_goes_on_when_the_device_is_out_of_memory(tmp_path: Path, is_newcomer: bool) -> None:
    """Newcomers that do not fit fail alone; a batch that cannot grow fails; later ones are served.

    There is less memory than was promised only if another process has taken it.
    """
    device = HostDevice()
    decoder = EngineCore(OrtRunner(language_bundle(tmp_path), 1, device=device), CAPACITY)
    running = Caller(decoder, 8 if is_newcomer else 200)
    for _ in range(4):
        decoder.step()
    device.runtime.capacity_bytes = device.runtime.allocated_bytes
    newcomer = Caller(decoder, 8, prompt=300) if is_newcomer else running
    finish(decoder)
    failed = newcomer.end
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Overloaded)
    assert "out of memory" in failed.error.message
    assert isinstance(running.end, Finished if is_newcomer else Failed)
    device.runtime.capacity_bytes = 1 << 30
    later = Caller(decoder, 5)
    finish(decoder)
    assert isinstance(later.end, Finished)


def ids(graphs: GraphIds, bound: object, runs: int) -> list[int]:
    return [graphs.of(bound) for _ in range(runs)]


def test_layout_is_captured_when_it_recurs() -> None:
    assert ids(GraphIds(), "a", 5) == [UNCAPTURED, UNCAPTURED, 1, 1, 1]


def test_other_addresses_have_another_id() -> None:
    graphs = GraphIds()
    ids(graphs, ("past", 256, (1, 2)), 3)
    assert ids(graphs, ("past", 512, (1, 2)), 3)[-1] == 2
    assert ids(graphs, ("past", 256, (1, 4)), 3)[-1] == 3
    assert graphs.of(("past", 256, (1, 2))) == 1


def test_beyond_the_limit_nothing_more_is_captured() -> None:
    graphs = GraphIds(limit=2)
    assert [ids(graphs, name, 4)[-1] for name in "abc"] == [1, 2, UNCAPTURED]
    assert ids(graphs, "a", 1) == [1]
    assert len(graphs) == 2


def test_layouts_that_never_recur_are_forgotten() -> None:
    graphs = GraphIds(limit=2)
    for number in range(1000):
        graphs.of(number)
    assert len(graphs._runs) <= 8


def test_runtime_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_LIBRARIES", ("libabsent.so.1", "libabsent.so.2"))
    with pytest.raises(DeviceError, match=r"^libabsent.so.1 or libabsent.so.2 is missing: install"):
        CudaRuntime(0)


def test_provider_is_missing() -> None:
    with pytest.raises(DeviceError, match="has no CUDAExecutionProvider: install"):
        installation.check_card(0)


def test_cudnn_is_missing() -> None:
    said = (
        "Non-zero status code returned while running Conv node. Name:'c' Status Message: cuDNN is "
        "unavailable or disabled for CUDA Execution Provider: dlopen failed for libcudnn.so"
    )
    wanted = (
        r"^cuDNN is missing, which Conv needs on CUDA: pip install onnxruntime-gpu\[cuda,cudnn\]$"
    )
    with pytest.raises(DeviceError, match=wanted):
        installation.require_cudnn(RuntimeError(said))


def test_other_errors_of_a_kernel_are_not_about_cudnn() -> None:
    installation.require_cudnn(RuntimeError("while running Conv node: CUDNN_STATUS_NOT_SUPPORTED"))
