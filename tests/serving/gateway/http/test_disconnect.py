"""The work for a request ends with its client, and nothing else does."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from inference.errors import Overloaded
from serving.gateway.http.handle_request import unless_disconnected
from serving.gateway.http.middleware import DISCONNECTED


async def test_disconnect_ends_the_work() -> None:
    ended = asyncio.Event()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await unless_disconnected({}, receive, work())
    assert ended.is_set()


@pytest.mark.parametrize("turns", range(6))
async def test_disconnect_in_the_moment_of_a_refusal_cancels_nothing(turns: int) -> None:
    """Whichever comes first: the task goes on to send the refusal, or sees the disconnect."""
    refused = asyncio.get_running_loop().create_future()

    async def receive() -> Message:
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def work() -> None:
        await refused

    async def refuse() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        if not refused.done():
            refused.set_exception(Overloaded("full"))

    refusing = asyncio.ensure_future(refuse())
    with pytest.raises((Overloaded, ClientDisconnect)):
        await unless_disconnected({}, receive, work())
    for _ in range(5):  # a late cancellation would end one of these
        await asyncio.sleep(0)
    await refusing
    task = asyncio.current_task()
    assert not task.cancelling()


async def test_work_that_ends_while_the_client_disconnects_is_not_cancelled_later() -> None:
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        await asyncio.sleep(0)  # `receive` waits
        gone.set()
        await asyncio.sleep(0)  # `receive` returns: what it calls is scheduled
        return "done"

    assert await unless_disconnected({}, receive, work()) == "done"
    for _ in range(5):
        await asyncio.sleep(0)


async def test_disconnect_that_the_server_notes_ends_the_work() -> None:
    disconnected = asyncio.get_running_loop().create_future()
    scope = {DISCONNECTED: disconnected}

    async def receive() -> Message:
        raise AssertionError("nothing reads beside the server")

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await unless_disconnected(scope, receive, work()) == "done"
    assert not disconnected.cancelled()
    asyncio.get_running_loop().call_soon(disconnected.set_result, None)
    with pytest.raises(ClientDisconnect):
        await unless_disconnected(scope, receive, asyncio.Event().wait())
    with pytest.raises(ClientDisconnect):
        await unless_disconnected(scope, receive, asyncio.Event().wait())  # also behind it
