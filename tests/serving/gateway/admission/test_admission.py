"""What is admitted is released when the work has ended, however it ends."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from inference.errors import InvalidRequest, Overloaded, Unavailable
from serving.gateway.admission.admission import Admission
from serving.gateway.admission.counts import LocalCounts
from tests.serving.waiting import settled


def admission(counts: LocalCounts | None = None, sequences: int = 8) -> Admission:
    limits = {"max_requests": 1, "max_tokens": 10, "max_pixels": 9, "max_bytes": 9}
    return Admission(**limits, max_sequences=sequences, counts=counts)


async def test_request_that_fails_is_no_longer_counted() -> None:
    counts = LocalCounts()
    gate = admission(counts)

    def serve() -> None:
        with gate.request():
            assert counts.total().requests == 1
            with pytest.raises(Overloaded):
                gate.check()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve()
    assert counts.total().requests == 0
    gate.check()


async def test_refused_request_counts_for_nothing() -> None:
    counts = LocalCounts()
    gate = admission(counts)
    with gate.request():
        with pytest.raises(Overloaded), gate.request():
            pytest.fail("it was admitted")
        assert counts.total().requests == 1


async def test_tokens_are_released_after_a_failure_and_after_a_refusal() -> None:
    counts = LocalCounts()
    gate = admission(counts)

    def serve() -> None:
        with gate.reserved(6):
            with pytest.raises(Overloaded), gate.reserved(5):
                pytest.fail("they were admitted")
            assert counts.total().tokens == 6
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve()
    assert counts.total().tokens == 0


def test_tokens_that_never_fit_are_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="at most 10"), admission().reserved(11):
        pytest.fail("they were admitted")


async def test_streams_leave_an_eighth_of_the_turns_to_others() -> None:
    gate, leave, held = admission(sequences=8), asyncio.Event(), []

    async def hold(turn: AbstractAsyncContextManager[None], name: str) -> None:
        async with turn:
            held.append(name)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(hold(gate.stream_turn(), "stream"))
        await settled()
        assert (held, gate.waiting) == (["stream"] * 7, 1)
        group.create_task(hold(gate.turn(), "other"))
        await settled()
        assert held[7:] == ["other"]
        leave.set()
    assert (held[8:], gate.waiting) == (["stream"], 0)


async def test_caller_that_is_cancelled_while_it_waits_is_not_counted() -> None:
    gate = admission(sequences=1)
    async with gate.turn():
        waiting = asyncio.create_task(gate.turn().__aenter__())
        await settled()
        assert gate.waiting == 1
        waiting.cancel()
        await asyncio.wait((waiting,))
    assert gate.waiting == 0
    async with gate.turn():
        """The turn was not given to the cancelled caller."""


async def test_shutdown_ends_requests_with_an_error_and_admits_no_more() -> None:
    gate = admission()

    async def serve() -> None:
        with gate.request():
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await settled()
    assert not await gate.drained(0)
    assert gate.abort_all() == 1
    with pytest.raises(Unavailable):
        await serving
    assert await gate.drained(0)
    with pytest.raises(Unavailable):
        gate.check()


async def test_cancelled_request_is_cancelled_and_released() -> None:
    counts = LocalCounts()
    gate = admission(counts)

    async def serve() -> None:
        with gate.request():
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await settled()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert counts.total().requests == 0
    assert await gate.drained(0)
