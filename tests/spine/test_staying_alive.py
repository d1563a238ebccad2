"""The house under blows: killed, stopped and overloaded models, clients that leave, a drain.

`TRIPTYCH_TEST_KILLS` and `TRIPTYCH_TEST_LEAVERS` say how often (20 and 2000).
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import signal
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from serving.triton import TritonSettings
from tests.spine.conftest import ENCODERS, MODEL, PATIENCE_S, Http, running, stop_house
from tests.spine.inside import (
    descendants,
    handles,
    idle,
    living,
    prefix,
    shared_memory,
    stub_of,
    vitals,
)
from tests.spine.visits import answered, crowd, is_ready, paragraph, serves, streamed, until

pytestmark = pytest.mark.integration

KILLS = int(os.environ.get("TRIPTYCH_TEST_KILLS", "20"))
PICTURE = Path(__file__).parents[2] / "export" / "examples" / "pictures" / "scene-1.png"
DEAD = TritonSettings.max_dead_stubs
LEAVERS = int(os.environ.get("TRIPTYCH_TEST_LEAVERS", "2000"))


async def test_killed_models_cost_only_their_own_requests(
    translator: Path, tmp_path: Path, http: Http, record_property: Callable[[str, object], None]
) -> None:
    with running(translator, tmp_path) as house:
        client = http(house)
        assert await serves(client)
        prefixes = {prefix(house)}
        first = (len(living(house)), handles(house), len(shared_memory(prefix(house))))
        ends: Counter[str] = Counter()
        recoveries, seen = [], [first]
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
            seen.append((processes, open_files, regions))
            assert processes <= first[0]
            assert open_files <= first[1] + 32, "each dead process may keep one, eight at most"
            assert regions <= first[2] + DEAD
        assert set(ends) <= {"answer", "unavailable"}
        assert ends["unavailable"], "nobody noticed"
        record_property("median_recovery_s", statistics.median(recoveries))
        print(f"recovery: median {statistics.median(recoveries):.2f} s, {ends}")
        print(f"processes, handles, regions: {seen}")
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


@pytest.mark.parametrize("part", ENCODERS)
async def test_encoder_that_hangs_is_not_ready_then_healed(
    pictures: Path, tmp_path: Path, http: Http, part: str
) -> None:
    with running(pictures, tmp_path, TRIPTYCH_STUCK_AFTER=2) as house:
        client = http(house)
        picture = base64.b64encode(PICTURE.read_bytes()).decode()
        body = {"images": [picture], "labels": ["a circle", "a square"]}

        async def look() -> httpx.Response:
            return await client.post("/v1/zero-shot", json=body)

        expected = (await look()).json()["data"]
        stuck = stub_of(house.process.pid, part)
        os.kill(stuck, signal.SIGSTOP)
        lost = [asyncio.create_task(look()) for _ in range(8)]

        async def is_not_ready() -> bool:
            return not await is_ready(client)

        async def answers() -> bool:
            response = await look()
            assert response.status_code in {200, 503}, response.text
            return response.status_code == 200

        await until(is_not_ready)
        await until(answers)
        await until(lambda: is_ready(client))
        async with asyncio.timeout(PATIENCE_S):
            ends = {response.status_code for response in await asyncio.gather(*lost)}
        assert ends <= {200, 503}
        assert (await look()).json()["data"] == expected
        assert stub_of(house.process.pid, part) != stuck


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
            figures = ("rows_in_use", "waiting", "state_bytes", "spare_bytes")
            left = [vital.figures[name] for name in figures]
            return not any(left) and all(float(value) == 0 for value in waits)

        await until(is_empty)
        assert vitals(house).figures["failures"] == 0
        assert await serves(client)
        assert living(house) == family, "something was restarted"
        assert stop_house(house) == 0


async def test_client_that_leaves_stops_its_decoding(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    """The engine goes on for the tokens that were under way, and not to the end.

    Four of a hundred sentences at a time, so that leaving is quicker than the rest of them.
    """
    with running(translator, tmp_path, TRIPTYCH_MAX_ROWS=4) as house:
        client = http(house)
        await until(lambda: serves(client))
        texts = [" ".join(paragraph(seed)) for seed in range(8)]
        body = {"texts": texts, "num_beams": 1, "stream": True}
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
