"""Calls of an earlier incarnation are ended; those that began under the new one run on."""

from __future__ import annotations

import asyncio

import pytest

from inference.errors import Unavailable
from serving.gateway.observability import background_tasks
from serving.gateway.triton_client.restart_watcher import GONE, RestartWatcher

MODEL = "tiny"


async def settle() -> None:
    await asyncio.sleep(0.02)


async def test_call_that_began_after_the_restart_runs_on() -> None:
    incarnation, answer = ["0"], asyncio.Event()

    async def read(model: str) -> str:
        return incarnation[-1]

    watcher = RestartWatcher(read, poll_s=0.002)
    watcher.note(MODEL, "0")
    older = asyncio.create_task(watcher.guarded(MODEL, answer.wait()))
    await settle()
    watcher.note(MODEL, "1")  # by another reader, before the watcher's next poll
    newer = asyncio.create_task(watcher.guarded(MODEL, answer.wait()))
    await asyncio.sleep(0)
    incarnation.append("1")
    with pytest.raises(Unavailable) as caught:
        await older
    assert caught.value.is_loss
    await settle()
    assert not newer.done()
    answer.set()
    assert await newer is True


async def test_every_call_of_an_unloaded_model_is_ended() -> None:
    incarnation = ["1"]

    async def read(model: str) -> str:
        return incarnation[-1]

    watcher = RestartWatcher(read, poll_s=0.002)
    watcher.note(MODEL, "1")
    running = asyncio.create_task(watcher.guarded(MODEL, asyncio.Event().wait()))
    await settle()
    incarnation.append(GONE)
    with pytest.raises(Unavailable):
        await running


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), RuntimeError("a bug")])
async def test_a_poll_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    failures = [failure]

    async def read(model: str) -> str:
        if failures:
            raise failures.pop()
        return GONE

    watcher = RestartWatcher(read, poll_s=0.002)
    running = asyncio.create_task(watcher.guarded(MODEL, asyncio.Event().wait()))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(running, 5)
