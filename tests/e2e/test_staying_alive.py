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
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise, starmap
from pathlib import Path

import httpx
import psutil
import pytest

from serving.liveness.stall_detector import EngineStats
from tests.e2e.conftest import ENCODERS, MODEL, PROGRAM, TIMEOUT_S, Http, Stack, running
from tests.e2e.workload import (
    alive_processes,
    answered,
    concurrent_load,
    engine_stats,
    idle,
    is_ready,
    paragraph,
    serves,
    shared_memory,
    shm_prefix,
    streamed,
    stub_of,
    until,
)

pytestmark = pytest.mark.integration

PICTURE = Path(__file__).parents[2] / "examples" / "demo" / "pictures" / "scene-1.png"
DISCONNECTS = int(os.environ.get("TRIPTYCH_TEST_DISCONNECTS", "200"))
MOST_REQUESTS = 48
ROWS, STATE_BYTES = 4, 64 << 20
ATTEMPTS = 20
SETTINGS: dict[str, dict[str, int]] = {
    # A model is stuck later than the 10 s after which its heartbeat is missed: it is not ready in
    # between.
    "limited": {"MAX_CONCURRENT_REQUESTS": MOST_REQUESTS, "STUCK_AFTER": 14},
    "narrow": {
        "MAX_ROWS": ROWS,
        "STATE_MEMORY": STATE_BYTES,
        "MAX_WAITING": 500,
        "MAX_CONCURRENT_SEQUENCES": 256,
        "GRACEFUL_TERMINATION_TIMEOUT": 0,
    },
}


@pytest.fixture(scope="module")
def stack_of(
    translator: Path, both_backends: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Stack]]:
    """One stack with each of `SETTINGS`; one that a test has ended is started again."""
    repositories = {"limited": both_backends, "narrow": translator}
    found: dict[str, Stack] = {}
    with ExitStack() as running_ones:

        def get(name: str) -> Stack:
            if name not in found or found[name].process.poll() is not None:
                settings = {f"TRIPTYCH_{key}": value for key, value in SETTINGS[name].items()}
                started = running(repositories[name], tmp_path_factory.mktemp(name), **settings)
                found[name] = running_ones.enter_context(started)
            return found[name]

        yield get


async def test_overload_is_refused_at_once_and_nothing_is_restarted(
    stack_of: Callable[[str], Stack], http: Http
) -> None:
    stack = stack_of("limited")
    client = http(stack)
    await until(lambda: serves(client))
    family = alive_processes(stack)
    texts = paragraph(1)
    responses = [
        asyncio.create_task(client.post("/v1/translate", json={"texts": texts})) for _ in range(160)
    ]
    pending: set[asyncio.Task[httpx.Response]] = set(responses)
    while pending:
        assert await is_ready(client), "a busy model is ready"
        _, pending = await asyncio.wait(pending, timeout=0.1)
    statuses = Counter(task.result().status_code for task in responses)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= MOST_REQUESTS
    refused = [task.result() for task in responses if task.result().status_code == 429]
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert alive_processes(stack) == family
    assert await serves(client)


async def test_disconnected_clients_leave_no_state_behind(
    stack_of: Callable[[str], Stack], http: Http
) -> None:
    stack = stack_of("limited")
    client = http(stack)
    await until(lambda: serves(client))
    chance, ends, in_flight = random.Random(3), Counter[str](), asyncio.Semaphore(32)
    texts = [text for seed in range(8) for text in paragraph(seed)]

    async def request(number: int) -> None:
        async with in_flight:
            asked = [chance.choice(texts)]
            is_stream = number % 4 > 1
            outcome = (
                streamed(client, asked, asyncio.Event()) if is_stream else answered(client, asked)
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


@pytest.mark.parametrize("part", [ENCODERS[0], pytest.param(ENCODERS[1], marks=pytest.mark.full)])
async def test_hung_models_are_not_ready_then_restarted(
    stack_of: Callable[[str], Stack], http: Http, part: str
) -> None:
    """A generator under load, and an encoder with requests that wait for it."""
    stack = stack_of("limited")
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


async def served(stack: Stack, client: httpx.AsyncClient) -> list[EngineStats]:
    """The engine's numbers, read again and again while it answers 32 requests."""
    work = await concurrent_load(client, asyncio.Event())
    seen = [engine_stats(stack)]
    async with asyncio.timeout(TIMEOUT_S):
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=0.1)
            seen.append(await asyncio.to_thread(engine_stats, stack))
    assert {task.result() for task in work} == {"answer"}
    return seen


def check_bounds(stats: EngineStats) -> None:
    figures = stats.figures
    assert figures["slots"] == ROWS
    assert figures["state_limit_bytes"] == STATE_BYTES
    assert figures["rows_in_use"] <= ROWS
    assert figures["state_bytes"] <= STATE_BYTES
    assert figures["row_steps"] <= ROWS * figures["steps"], "rows that no look has met"


def was_full(earlier: EngineStats, later: EngineStats) -> bool:
    """Whether a look met all rows, or a step between two looks had them."""
    steps, rows = (later.figures[name] - earlier.figures[name] for name in ("steps", "row_steps"))
    return later.figures["rows_in_use"] == ROWS or rows > (ROWS - 1) * steps


async def test_engine_keeps_within_its_rows_and_answers_everything(
    stack_of: Callable[[str], Stack], http: Http
) -> None:
    """An operator's bounds hold in a served model, and outlive its process."""
    stack = stack_of("narrow")
    client = http(stack)
    seen = await served(stack, client)
    for stats in seen:
        check_bounds(stats)
    assert any(starmap(was_full, pairwise(seen))), "it was never full"

    body = {"texts": paragraph(1), "num_beams": ROWS + 1}
    refused = await client.post("/v1/translate", json=body)
    assert refused.status_code == 422
    assert f"{ROWS + 1} beams" in refused.json()["error"]["message"]

    os.kill(stub_of(stack.process.pid, MODEL), signal.SIGKILL)
    await until(lambda: serves(client))

    async def is_restarted() -> bool:
        return engine_stats(stack).incarnation == seen[-1].incarnation + 1

    await until(is_restarted)
    check_bounds(engine_stats(stack))


def test_bound_below_a_models_own_beams_stops_the_start(translator: Path) -> None:
    command = [*PROGRAM, "triton", "--repository", str(translator), "--max-rows", "1"]
    ports = ["--grpc-port", "0", "--metrics-port", "0"]
    started = subprocess.run([*command, *ports], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert started.returncode != 0
    assert "4 rows per request by default, max_rows is 1" in started.stderr


async def test_disconnect_stops_decoding(stack_of: Callable[[str], Stack], http: Http) -> None:
    """Decoding ends soon after the client disconnects.

    Four of three hundred sentences at a time. Nearly all of them are Triton's by then, and would be
    decoded without it. The model is stopped from the first token that the client reads until the
    gateway has seen the disconnect; on a busy machine it would be done by then.
    """
    stack = stack_of("narrow")
    client = http(stack)
    await until(lambda: serves(client))
    texts = [" ".join(paragraph(seed)) for seed in range(24)]
    body = {"texts": texts, "num_beams": 1, "stream": True}
    model = psutil.Process(stub_of(stack.process.pid, MODEL))
    began_s = processor_s(model)
    whole = await client.post("/v1/translate", json=body)
    whole_s = processor_s(model) - began_s
    tokens = sum(map(int, re.findall(r'"completion_tokens":(\d+)', whole.text)))
    spent = 0.0

    async def is_seen() -> bool:
        return "error=cancelled" in stack.log.read_text()[printed:]

    for _ in range(ATTEMPTS):
        await until(lambda: idle(stack))
        before, printed = engine_stats(stack).figures["row_steps"], len(stack.log.read_text())
        began_s = processor_s(model)
        async with client.stream("POST", "/v1/translate", json=body) as response:
            await anext(response.aiter_bytes())
            model.suspend()
        try:
            is_early = processor_s(model) - began_s < whole_s / 4
            if is_early:  # else the client was late, and there may be nothing left to cancel
                await until(is_seen)
        finally:
            model.resume()
        if is_early:
            await until(lambda: idle(stack))
            spent = engine_stats(stack).figures["row_steps"] - before
            break
    print(f"{spent:.0f} of {tokens} tokens were decoded after a disconnect at the first")
    assert 0 < spent < tokens / 2


def processor_s(process: psutil.Process) -> float:
    """Processor time that a process has had, in seconds."""
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.parametrize(("name", "end"), [("limited", "answer"), ("narrow", "unavailable")])
async def test_drain_lets_streams_finish_within_the_grace(
    stack_of: Callable[[str], Stack], http: Http, name: str, end: str
) -> None:
    stack = stack_of(name)
    client, own = http(stack), shm_prefix(stack)
    work = await concurrent_load(client, asyncio.Event())
    stack.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(TIMEOUT_S):
        ends = Counter(await asyncio.gather(*work))
    assert stack.process.wait(TIMEOUT_S) == 0
    assert ends[end] == len(work) if end == "answer" else set(ends) <= {"answer", "unavailable"}
    assert ends[end]
    assert not shared_memory(own)
