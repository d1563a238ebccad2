"""Captured steps: replayed where they recur, on the right addresses, with the tokens of the CPU.

`HostDevice` replays a graph as a card does, so a wrong id gives other tokens here too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from inference.bundle.manifest import Bundle
from inference.engine.engine_core import EngineCore, decode
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.cuda.graph_ids import GraphIds
from inference.engine.runners.ort.bound_graph import BoundGraph
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.prompt import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest, Event, Failed
from inference.engine.sequence import SequenceState
from inference.errors import InternalError, Overloaded
from inference.generation import Generation
from inference.sequences import Finished, TokenChunk
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.runners.ort.test_devices import BUILDERS, requests, tokens
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    halved,
    language_bundle,
    recurrent_bundle,
)

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


def finish(decoder: EngineCore) -> None:
    while not decoder.is_idle:
        decoder.step()


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
