"""Turns are divided among keys, whatever the order in which their requests came."""

import asyncio

import pytest

from serving.gateway.admission.counts import FairTurns
from tests.serving.waiting import settled


class Harness:
    """Callers that take turns; `order` has their names in the order in which they got one."""

    def __init__(self, limit: int) -> None:
        self.semaphore = asyncio.Semaphore(limit)
        self.turns = FairTurns(self.semaphore)
        self.order: list[str] = []

    def call(self, name: str, key: str | None) -> asyncio.Task[None]:
        async def take() -> None:
            await self.turns.acquire(key)
            self.order.append(name)

        return asyncio.create_task(take())


async def test_a_second_key_is_next_although_many_of_the_first_wait() -> None:
    harness = Harness(limit=2)
    calls = [harness.call(f"a{number}", "a") for number in range(6)]
    await settled()
    calls.append(harness.call("b0", "b"))
    await settled()
    assert harness.order == ["a0", "a1"]
    harness.turns.release("a")
    await settled()
    assert harness.order == ["a0", "a1", "b0"]
    for key in ("b", "a", "a", "a"):
        harness.turns.release(key)
        await settled()
    assert harness.order[3:] == ["a2", "a3", "a4", "a5"]
    for call in calls:
        await call


async def test_turns_are_returned_by_cancelled_callers() -> None:
    harness = Harness(limit=1)
    first, second, third = (harness.call(name, "a") for name in ("first", "second", "third"))
    await settled()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    harness.turns.release("a")
    third.cancel()  # at the moment in which it is given its turn
    await settled()
    assert harness.order in (["first"], ["first", "third"])
    if harness.order == ["first", "third"]:
        harness.turns.release("a")
    await harness.call("last", "b")
    assert harness.order[-1] == "last"
    assert harness.semaphore.locked()
    await first


async def test_a_caller_that_is_cancelled_with_its_turn_gives_it_back() -> None:
    harness = Harness(limit=1)
    call = harness.call("one", "a")
    await asyncio.sleep(0)  # it waits
    await asyncio.sleep(0)  # it has been given a turn, and has not run since
    call.cancel()
    await settled()
    assert call.cancelled()
    assert not harness.semaphore.locked()
    await harness.call("two", "a")
    assert harness.order == ["two"]


async def test_callers_without_a_key_have_their_order() -> None:
    harness = Harness(limit=1)
    calls = [harness.call(str(number), None) for number in range(3)]
    for number in range(3):
        await settled()
        assert harness.order == [str(each) for each in range(number + 1)]
        harness.turns.release(None)
    await asyncio.gather(*calls)
    assert not harness.semaphore.locked()
