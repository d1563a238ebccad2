"""Ends the work for a request when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """The work's result; cancelled when the client disconnects.

    The work runs in the current task: a task of its own costs two more wake-ups.

    Args:
        receive: The request's, its body having been read.
        work: What to wait for.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    task = asyncio.current_task()
    assert task is not None
    is_disconnected = is_over = False

    def on_disconnect(watching: asyncio.Task[None]) -> None:
        nonlocal is_disconnected
        if (
            watching.cancelled() or is_over
        ):  # is called after its removal if it was scheduled before
            return
        watching.exception()  # reading failed: disconnected as well
        is_disconnected = True
        task.cancel()

    watching = asyncio.ensure_future(_disconnected(receive))
    watching.add_done_callback(on_disconnect)
    try:
        return await work
    except asyncio.CancelledError:
        if not is_disconnected or task.uncancel():  # also cancelled by others
            raise
        raise ClientDisconnect from None
    finally:
        is_over = True
        watching.remove_done_callback(on_disconnect)
        watching.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
