"""Where tasks wait."""

from __future__ import annotations

import asyncio

from serving.gateway.observability.task_stacks import running_tasks


async def _inner(event: asyncio.Event) -> None:
    await event.wait()


async def _outer(event: asyncio.Event) -> None:
    await _inner(event)


def test_each_task_is_described_down_to_what_it_waits_for() -> None:
    async def run() -> list[str]:
        event = asyncio.Event()
        tasks = [asyncio.create_task(_outer(event), name=name) for name in ("first", "second")]
        await asyncio.sleep(0)
        found = running_tasks()
        event.set()
        await asyncio.gather(*tasks)
        return found

    first, second = asyncio.run(run())
    assert first.startswith("first: _outer:")
    assert " > _inner:" in first
    assert " > Event.wait:" in first
    assert second.startswith("second: ")
