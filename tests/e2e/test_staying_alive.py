"""Failures: killed, stopped and overloaded models, clients that disconnect, a drain.

`TRIPTYCH_TEST_DISCONNECTS` sets how many clients disconnect. Processes that are killed are in
`test_lost_processes`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ENCODERS, MODEL, TIMEOUT_S, Http, running, stop_stack
from tests.e2e.introspection import (
    alive_processes,
    engine_stats,
    idle,
    shared_memory,
    shm_prefix,
    stub_of,
)
from tests.e2e.workload import (
    answered,
    concurrent_load,
    is_ready,
    paragraph,
    serves,
    streamed,
    until,
)

pytestmark = pytest.mark.integration

PICTURE = Path(__file__).parents[2] / "examples" / "demo" / "pictures" / "scene-1.png"
DISCONNECTS = int(os.environ.get("TRIPTYCH_TEST_DISCONNECTS", "200"))


@pytest.mark.parametrize("part", [ENCODERS[0], pytest.param(ENCODERS[1], marks=pytest.mark.full)])
async def test_hung_models_are_not_ready_then_restarted(
    translator: Path, pictures: Path, tmp_path: Path, http: Http, part: str
) -> None:
    """A generator under load, and an encoder with requests that wait for it."""
    shutil.copytree(translator, tmp_path / "models")
    shutil.copytree(pictures, tmp_path / "models", dirs_exist_ok=True)
    # Longer than the 10 s after which a heartbeat is missed: the models are not ready in between.
    with running(tmp_path / "models", tmp_path, TRIPTYCH_STUCK_AFTER=14) as stack:
        client = http(stack)
        picture = base64.b64encode(PICTURE.read_bytes()).decode()
        body = {"images": [picture], "labels": ["a circle", "a square"]}

        async def classify() -> httpx.Response:
            return await client.post("/v1/zero-shot", json=body)

        async def classifies() -> bool:
            response = await classify()
            assert response.status_code in {200, 503}, response.text
            return response.status_code == 200

        async def is_not_ready() -> bool:
            return not await is_ready(client)

        expected = (await classify()).json()["data"]
        work = await concurrent_load(client, asyncio.Event())
        stuck = {name: stub_of(stack.process.pid, name) for name in (MODEL, part)}
        for pid in stuck.values():
            os.kill(pid, signal.SIGSTOP)
        lost = [asyncio.create_task(classify()) for _ in range(8)]
        await until(is_not_ready)
        await until(lambda: serves(client))
        await until(classifies)
        await until(lambda: is_ready(client))
        async with asyncio.timeout(TIMEOUT_S):
            assert set(await asyncio.gather(*work)) == {"answer"}
            assert {one.status_code for one in await asyncio.gather(*lost)} == {200}
        assert (await classify()).json()["data"] == expected
        for name, pid in stuck.items():
            assert stub_of(stack.process.pid, name) != pid


async def test_overload_is_refused_at_once_and_nothing_is_restarted(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path, TRIPTYCH_MAX_CONCURRENT_REQUESTS=16) as stack:
        client = http(stack)
        await until(lambda: serves(client))
        family = alive_processes(stack)
        texts = paragraph(1)
        responses = [
            asyncio.create_task(client.post("/v1/translate", json={"texts": texts}))
            for _ in range(160)
        ]
        pending: set[asyncio.Task[httpx.Response]] = set(responses)
        while pending:
            assert await is_ready(client), "a busy model is ready"
            _, pending = await asyncio.wait(pending, timeout=0.1)
        statuses = Counter(task.result().status_code for task in responses)
        assert set(statuses) == {200, 429}
        assert statuses[200] >= 16
        refused = [task.result() for task in responses if task.result().status_code == 429]
        assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
        assert alive_processes(stack) == family
        assert await serves(client)


async def test_disconnected_clients_leave_no_state_behind(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path) as stack:
        client = http(stack)
        await until(lambda: serves(client))
        chance, ends, in_flight = random.Random(3), Counter[str](), asyncio.Semaphore(32)
        texts = [text for seed in range(8) for text in paragraph(seed)]

        async def request(number: int) -> None:
            async with in_flight:
                asked = [chance.choice(texts)]
                is_stream = number % 4 > 1
                outcome = (
                    streamed(client, asked, asyncio.Event())
                    if is_stream
                    else answered(client, asked)
                )
                work = asyncio.create_task(outcome)
                if number % 2:
                    await asyncio.wait((work,), timeout=chance.random() * 0.1)
                    work.cancel()
                try:
                    ends[await work] += 1
                except asyncio.CancelledError:
                    ends["disconnected"] += 1

        await asyncio.gather(*(request(number) for number in range(DISCONNECTS)))
        print(f"of {DISCONNECTS} requests: {dict(ends)}")
        assert set(ends) <= {"answer", "disconnected"}
        assert ends["disconnected"] > DISCONNECTS / 20, (
            "too few clients disconnected during their requests"
        )
        family = alive_processes(stack)

        async def is_empty() -> bool:
            stats = engine_stats(stack)
            own = (await client.get("/metrics")).text
            waits = re.findall(r"^triptych_(?:queue_size|tokens_in_flight) (\S+)$", own, re.M)
            assert len(waits) == 2
            figures = ("rows_in_use", "waiting", "state_bytes", "spare_bytes")
            remaining = [stats.figures[name] for name in figures]
            return not any(remaining) and all(float(value) == 0 for value in waits)

        await until(is_empty)
        assert engine_stats(stack).figures["failures"] == 0
        assert await serves(client)
        assert alive_processes(stack) == family, "something was restarted"
        assert stop_stack(stack) == 0


async def test_disconnect_stops_decoding(translator: Path, tmp_path: Path, http: Http) -> None:
    """Decoding ends soon after the client disconnects.

    Four of three hundred sentences at a time, so that the abort arrives long before the last one,
    on a busy machine too.
    """
    with running(translator, tmp_path, TRIPTYCH_MAX_ROWS=4, TRIPTYCH_MAX_WAITING=500) as stack:
        client = http(stack)
        await until(lambda: serves(client))
        texts = [" ".join(paragraph(seed)) for seed in range(24)]
        body = {"texts": texts, "num_beams": 1, "stream": True}
        whole = await client.post("/v1/translate", json=body)
        tokens = sum(map(int, re.findall(r'"completion_tokens":(\d+)', whole.text)))
        await until(lambda: idle(stack))
        before = engine_stats(stack).figures["row_steps"]
        async with client.stream("POST", "/v1/translate", json=body) as response:
            await anext(response.aiter_bytes())
        await until(lambda: idle(stack))
        spent = engine_stats(stack).figures["row_steps"] - before
        print(f"{spent:.0f} of {tokens} tokens were decoded after a disconnect at the first")
        assert spent < tokens / 2


@pytest.mark.parametrize(("grace_s", "end"), [(30, "answer"), (0, "unavailable")])
async def test_drain_lets_streams_finish_within_the_grace(
    translator: Path, tmp_path: Path, http: Http, grace_s: int, end: str
) -> None:
    grace = {"TRIPTYCH_GRACEFUL_TERMINATION_TIMEOUT": grace_s}
    with running(translator, tmp_path, **grace) as stack:
        client, own = http(stack), shm_prefix(stack)
        work = await concurrent_load(client, asyncio.Event())
        stack.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT_S):
            ends = Counter(await asyncio.gather(*work))
        assert stack.process.wait(TIMEOUT_S) == 0
        assert ends[end] == len(work) if grace_s else set(ends) <= {"answer", "unavailable"}
        assert ends[end]
    assert not shared_memory(own)
