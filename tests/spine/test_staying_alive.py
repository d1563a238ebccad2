"""The house under blows: killed, stopped and overloaded models, clients that leave, a drain.

`TRIPTYCH_TEST_KILLS` and `TRIPTYCH_TEST_LEAVERS` say how often (20 and 2000).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from export.examples.grammar import sentences
from serving.heartbeat import Vitals, read_vitals
from tests.spine.conftest import House, start_house, stop_house
from tests.spine.test_lifecycle import SHARED_MEMORY, descendants, stub_of

pytestmark = pytest.mark.integration

MODEL = "example-es-en"
KILLS = int(os.environ.get("TRIPTYCH_TEST_KILLS", "20"))
LEAVERS = int(os.environ.get("TRIPTYCH_TEST_LEAVERS", "2000"))
PATIENCE_S = 60.0
"""How long a test waits before it calls something hung; nothing should come near it."""
QUESTION = {"texts": ["el mundo no es suficiente"], "num_beams": 1}
ANSWER = "the world is not enough"


@pytest.fixture(scope="module")
def translator(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the translator alone, so that restarts are quick."""
    folder = tmp_path_factory.mktemp("alive") / "model_repository"
    shutil.copytree(repository / MODEL, folder / MODEL)
    return folder


@contextmanager
def running(repository: Path, folder: Path, **environment: object) -> Iterator[House]:
    """A house of its own, with the environment's settings."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        house = start_house(repository, folder / "serve.log")
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield house
    finally:
        if house.process.poll() is None:
            stop_house(house)


@pytest.fixture
async def http() -> AsyncIterator[Callable[[House], httpx.AsyncClient]]:
    """Makes clients that never reuse a connection: an idle one may be closed any time."""
    made: list[httpx.AsyncClient] = []

    def make(house: House) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        made.append(httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S, limits=limits))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


Http = Callable[[House], httpx.AsyncClient]


def paragraph(seed: int) -> list[str]:
    """Twelve sentences."""
    return [pair.spanish for pair in sentences("compositional", 12, seed=seed)]


async def answered(client: httpx.AsyncClient, texts: list[str]) -> str:
    """How a request ended: `answer`, or the error's name."""
    response = await client.post("/v1/translate", json={"texts": texts})
    if response.status_code == 200:
        assert len(response.json()["data"]) == len(texts)
        return "answer"
    return str(response.json()["error"]["type"])


async def streamed(client: httpx.AsyncClient, texts: list[str], begun: asyncio.Event) -> str:
    """How a stream ended: `answer`, or the error's name."""
    body = {"texts": texts, "num_beams": 1, "stream": True}
    async with client.stream("POST", "/v1/translate", json=body) as response:
        told = b""
        async for chunk in response.aiter_bytes():
            told += chunk
            if response.status_code == 200:
                begun.set()
    if told.endswith(b"data: [DONE]\n\n"):
        return "answer"
    found = re.search(rb'"type":"(\w+)"', told)
    assert found, f"a stream broke off: {told[-200:]!r}"
    return found[1].decode()


async def crowd(client: httpx.AsyncClient, begun: asyncio.Event) -> list[asyncio.Task[str]]:
    """32 requests, half of them streams, the first of which has begun to be answered."""
    work = [asyncio.create_task(answered(client, paragraph(seed))) for seed in range(16)]
    work += [asyncio.create_task(streamed(client, paragraph(16 + n), begun)) for n in range(16)]
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    return work


async def until(claim: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until a claim holds."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while not await claim():
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def serves(client: httpx.AsyncClient) -> bool:
    response = await client.post("/v1/translate", json=QUESTION)
    if response.status_code != 200:
        assert response.status_code in {429, 503}, response.text
        assert response.headers["retry-after"]
        return False
    assert response.json()["data"][0]["text"] == ANSWER
    return True


async def is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


def triton_of(house: House) -> int:
    """Pid of tritonserver."""
    return next(pid for pid in living(house) if "tritonserver" in words(pid)[0])


def vitals(house: House) -> Vitals:
    """What the translator's engine last published."""
    flag = next(word for word in words(triton_of(house)) if word.startswith("--metrics-port="))
    url = f"http://127.0.0.1:{flag.partition('=')[2]}/metrics"
    return read_vitals(httpx.get(url, trust_env=False, timeout=PATIENCE_S).text)[MODEL]


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]


def living(house: House) -> set[int]:
    """Processes below the house's; zombies have given everything back but their number."""
    return {pid for pid in descendants(house.process.pid) if words(pid)[0]}


def handles(house: House) -> int:
    """Open files of the processes that stay: all but the models'."""
    stay = [pid for pid in living(house) if "stub" not in words(pid)[0]]
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in stay)


def prefix(house: House) -> str:
    """What the server's files in shared memory begin with."""
    return next(w for w in words(triton_of(house)) if "shm-region-prefix-name" in w).split("=")[-1]


def shared_memory(*prefixes: str) -> list[Path]:
    return [path for each in prefixes for path in SHARED_MEMORY.glob(f"{each}*")]


async def test_killed_models_cost_only_their_own_requests(
    translator: Path, tmp_path: Path, http: Http, record_property: Callable[[str, object], None]
) -> None:
    with running(translator, tmp_path) as house:
        client = http(house)
        assert await serves(client)
        prefixes = {prefix(house)}
        first = (len(living(house)), handles(house), len(shared_memory(prefix(house))))
        ends: Counter[str] = Counter()
        recoveries = []
        for _ in range(KILLS):
            work = await crowd(client, asyncio.Event())
            os.kill(stub_of(house.process.pid, MODEL), signal.SIGKILL)
            recoveries.append(await until(lambda: serves(client)))
            async with asyncio.timeout(PATIENCE_S):
                ends.update(await asyncio.gather(*work))
            assert await is_ready(client)
            prefixes.add(prefix(house))
            processes, open_files, regions = (
                len(living(house)), handles(house), len(shared_memory(prefix(house))),
            )  # fmt: skip
            assert processes <= first[0]
            assert open_files <= first[1] + 500
            assert regions <= 10 * first[2]
        assert set(ends) <= {"answer", "unavailable"}
        assert ends["unavailable"], "nobody noticed"
        record_property("median_recovery_s", statistics.median(recoveries))
        print(f"recovery: median {statistics.median(recoveries):.2f} s, {ends}")
        family = descendants(house.process.pid)
        assert stop_house(house) == 0
    assert not {pid for pid in family if Path(f"/proc/{pid}").exists()}
    assert not shared_memory(*prefixes)


async def test_model_that_hangs_is_not_ready_then_healed(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path, TRIPTYCH_STUCK_AFTER=2) as house:
        client = http(house)
        work = await crowd(client, asyncio.Event())
        stuck = stub_of(house.process.pid, MODEL)
        os.kill(stuck, signal.SIGSTOP)

        async def is_not_ready() -> bool:
            return not await is_ready(client)

        await until(is_not_ready)
        await until(lambda: serves(client))
        await until(lambda: is_ready(client))
        async with asyncio.timeout(PATIENCE_S):
            assert set(await asyncio.gather(*work)) <= {"answer", "unavailable"}
        assert stub_of(house.process.pid, MODEL) != stuck


async def test_overload_is_refused_at_once_and_nothing_is_restarted(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path, TRIPTYCH_MAX_CONCURRENT_REQUESTS=16) as house:
        client = http(house)
        await until(lambda: serves(client))
        family = living(house)
        texts = paragraph(1)
        responses = [
            asyncio.create_task(client.post("/v1/translate", json={"texts": texts}))
            for _ in range(160)
        ]
        pending: set[asyncio.Task[httpx.Response]] = set(responses)
        while pending:
            assert await is_ready(client), "busy is not dead"
            _, pending = await asyncio.wait(pending, timeout=0.1)
        statuses = Counter(task.result().status_code for task in responses)
        assert set(statuses) == {200, 429}
        assert statuses[200] >= 16
        refused = [task.result() for task in responses if task.result().status_code == 429]
        assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
        assert living(house) == family
        assert await serves(client)


async def test_clients_that_leave_take_nothing_with_them(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path) as house:
        client = http(house)
        await until(lambda: serves(client))
        await until(lambda: idle(house))
        empty_bytes = vitals(house).figures["state_bytes"]
        chance, ends, crowded = random.Random(3), Counter[str](), asyncio.Semaphore(32)
        texts = [text for seed in range(8) for text in paragraph(seed)]

        async def come(number: int) -> None:
            async with crowded:
                asked = [chance.choice(texts)]
                is_stream = number % 4 > 1
                visit = (
                    streamed(client, asked, asyncio.Event())
                    if is_stream
                    else answered(client, asked)
                )
                work = asyncio.create_task(visit)
                if number % 2:
                    await asyncio.wait((work,), timeout=chance.random() * 0.1)
                    work.cancel()
                try:
                    ends[await work] += 1
                except asyncio.CancelledError:
                    ends["left"] += 1

        await asyncio.gather(*(come(number) for number in range(LEAVERS)))
        print(f"of {LEAVERS} visits: {dict(ends)}")
        assert set(ends) <= {"answer", "left"}
        assert ends["left"] > LEAVERS / 20, "nobody left while being served"
        family = living(house)

        async def is_empty() -> bool:
            vital = vitals(house)
            own = (await client.get("/metrics")).text
            waits = re.findall(r"^triptych_(?:queue_size|tokens_in_flight) (\S+)$", own, re.M)
            assert len(waits) == 2
            is_idle = not vital.is_busy and vital.figures["state_bytes"] == empty_bytes
            return is_idle and all(float(value) == 0 for value in waits)

        await until(is_empty)
        assert vitals(house).figures["failures"] == 0
        assert await serves(client)
        assert living(house) == family, "something was restarted"
        assert stop_house(house) == 0


async def test_client_that_leaves_stops_its_decoding(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    """The engine goes on for the tokens that were under way, and not to the end."""
    with running(translator, tmp_path) as house:
        client = http(house)
        await until(lambda: serves(client))
        body = {"texts": paragraph(5), "num_beams": 1, "stream": True}
        whole = await client.post("/v1/translate", json=body)
        tokens = sum(map(int, re.findall(r'"completion_tokens":(\d+)', whole.text)))
        await until(lambda: idle(house))
        before = vitals(house).figures["row_steps"]
        async with client.stream("POST", "/v1/translate", json=body) as response:
            await anext(response.aiter_bytes())
        await until(lambda: idle(house))
        spent = vitals(house).figures["row_steps"] - before
        print(f"{spent:.0f} of {tokens} tokens were decoded for a client that left at the first")
        assert spent < tokens / 2


async def idle(house: House) -> bool:
    """Whether the engine says so twice, with a beat between."""
    first = vitals(house)
    await asyncio.sleep(0.6)
    second = vitals(house)
    return not (first.is_busy or second.is_busy) and second.beats > first.beats


@pytest.mark.parametrize(("grace_s", "end"), [(30, "answer"), (0, "unavailable")])
async def test_drain_lets_streams_finish_within_the_grace(
    translator: Path, tmp_path: Path, http: Http, grace_s: int, end: str
) -> None:
    grace = {"TRIPTYCH_GRACEFUL_TERMINATION_TIMEOUT": grace_s}
    with running(translator, tmp_path, **grace) as house:
        client, own = http(house), prefix(house)
        work = await crowd(client, asyncio.Event())
        house.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            ends = Counter(await asyncio.gather(*work))
        assert house.process.wait(PATIENCE_S) == 0
        assert ends[end] == len(work) if grace_s else set(ends) <= {"answer", "unavailable"}
        assert ends[end]
    assert not shared_memory(own)
