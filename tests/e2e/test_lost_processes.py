"""Model processes are killed under requests of every kind: each answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from serving.triton.supervisor import MAX_DEAD_STUBS
from tests.e2e.conftest import ENCODERS, MODEL, TIMEOUT_S, Http, running, stop_stack
from tests.e2e.text_bundles import copy_models
from tests.e2e.workload import (
    MODELS,
    Load,
    counted,
    descendants,
    is_ready,
    resources,
    same,
    shared_memory,
    shm_prefix,
    stub_of,
    triton_of,
    until,
)

pytestmark = pytest.mark.integration

SERVER = "tritonserver"
VICTIMS = (*MODELS, SERVER, *MODELS, MODEL)
"""In this order: each model's process and the server first."""


@pytest.fixture(scope="module")
def several(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model of each kind."""
    return copy_models(repository, tmp_path_factory.mktemp("lost"), (*MODELS, ENCODERS[1]))


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.full)])
async def test_no_request_is_lost_with_the_process_of_its_model(
    several: Path,
    tmp_path: Path,
    http: Http,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(5)
    with running(several, tmp_path) as stack:
        client = http(stack)
        await until(lambda: is_ready(client))
        load = Load(client, of_each=2 if kills == 5 else 4)
        undisturbed = await load.answers(asyncio.Event())
        assert same(await load.answers(asyncio.Event()), undisturbed), "batches change the answers"
        assert await counted(client, "resent_calls") == 0
        prefixes = {shm_prefix(stack)}
        first = resources(stack)
        recoveries: dict[bool, list[float]] = {False: [], True: []}
        for number in range(kills):
            begun = asyncio.Event()
            work = asyncio.create_task(load.answers(begun))
            victim = VICTIMS[number % len(VICTIMS)]
            async with asyncio.timeout(TIMEOUT_S):
                await begun.wait()
                turns = chance.randrange(40) if number >= len(MODELS) else 0
                for _ in range(turns):  # so that all phases are met
                    await is_ready(client)
            is_server = victim == SERVER
            pid = triton_of(stack) if is_server else stub_of(stack.process.pid, victim)
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            async with asyncio.timeout(TIMEOUT_S):
                assert await load.answer_of(MODEL if is_server else victim)
                recoveries[is_server].append(time.monotonic() - began)
                answers = await work
            for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
                assert same(answer, wanted), (number, victim, request, answer, wanted)
            await until(lambda: is_ready(client))
            prefixes.add(shm_prefix(stack))
            processes, files, regions = resources(stack)
            assert processes <= first[0]
            assert files <= first[1] + 32, "each dead process may keep one"
            assert regions <= first[2] + MAX_DEAD_STUBS
        count, kept = [await counted(client, one) for one in ("resent_calls", "kept_tokens")]
        assert count >= kills
        assert kept, "no stream had begun when its process was killed"
        assert not await counted(client, "quarantined_calls")
        print(f"{kills} kills, {count:.0f} calls sent again, {kept:.0f} tokens kept")
        for name, seconds in zip(("model process", SERVER), recoveries.values(), strict=True):
            median_s, worst_s = statistics.median(seconds), max(seconds)
            record_property(f"median_recovery_s of {name}", median_s)
            print(f"{name}: recovery median {median_s:.2f} s, worst {worst_s:.2f} s")
        family = descendants(stack.process.pid)
        assert stop_stack(stack) == 0
    assert not {pid for pid in family if Path(f"/proc/{pid}").exists()}
    assert not shared_memory(*prefixes)


@pytest.mark.parametrize("kills", [len(MODELS), pytest.param(50, marks=pytest.mark.full)])
async def test_no_request_is_lost_while_a_process_is_killed_each_second(
    several: Path, tmp_path: Path, http: Http, kills: int
) -> None:
    with running(several, tmp_path) as stack:
        client = http(stack)
        await until(lambda: is_ready(client))
        load, over = Load(client, of_each=2), asyncio.Event()
        undisturbed = await load.answers(asyncio.Event())

        async def repeat() -> None:
            while not over.is_set():
                answers = await load.answers(asyncio.Event())
                for request, answer, wanted in zip(
                    load.requests, answers, undisturbed, strict=True
                ):
                    assert same(answer, wanted), (request, answer, wanted)

        async with asyncio.timeout(TIMEOUT_S + 2 * kills), asyncio.TaskGroup() as group:
            group.create_task(repeat())
            for number in range(kills):
                await asyncio.sleep(1.0)
                with suppress(AssertionError):  # it is not up yet
                    os.kill(
                        stub_of(stack.process.pid, MODELS[number % len(MODELS)]), signal.SIGKILL
                    )
            over.set()
        assert await counted(client, "resent_calls")
        assert not await counted(client, "quarantined_calls")
