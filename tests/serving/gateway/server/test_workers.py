"""The supervisor of workers, over programs that stand in for them, and limits over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.errors import Overloaded
from serving.gateway import run_gateway
from serving.gateway.admission.admission import FREE_BYTES, Admission, FairTurns, LocalCounts, Usage
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.server import supervisor, worker_process
from serving.gateway.server.shared_counts import Field, Segment, SharedCounts, SharedTurns
from serving.gateway.server.supervisor import Supervisor
from serving.gateway.server.worker_process import RunFolder, Start
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.server.worker_programs import KEYS
from tests.serving.triton.tiny import wait_until
from tests.serving.waiting import settled, until

PROGRAM = (sys.executable, "-m", "tests.serving.gateway.server.worker_programs")
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_process, "_PROGRAM", PROGRAM)
    monkeypatch.setattr(worker_process, "STACKS_S", 0.05)
    monkeypatch.setattr(supervisor, "_POLL_S", 0.05)
    monkeypatch.setattr(supervisor, "_FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(supervisor, "STUCK_AFTER_S", 1.0)
    monkeypatch.setattr(supervisor, "_OVERDUE_S", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    behave("serves")


def behave(behaviour: str) -> None:
    Path("behaviour").write_text(behaviour)


class Running:
    """A supervisor of two workers on this event loop, in the current folder."""

    def __init__(self, grace_s: float) -> None:
        settings = GatewaySettings(
            workers=2, api_key="secret", graceful_termination_timeout=grace_s
        )
        self.sockets = (socket.create_server(("127.0.0.1", 0)), socket.socket())
        self.sockets[1].bind(("127.0.0.1", 0))
        folder = Path("run").absolute()
        folder.mkdir()
        self.supervisor = Supervisor(settings, RunFolder(folder), *self.sockets)
        self.segment = self.supervisor._segment
        self.task = asyncio.create_task(self.supervisor.run())

    def pids(self) -> list[int]:
        return [worker.pid for worker in self.supervisor._running if worker.beats]

    async def until(self, is_so: Callable[[], bool]) -> None:
        await until(is_so, 30)

    async def serving(self) -> list[int]:
        """The processes, once both serve."""
        await self.until(lambda: len(self.pids()) == 2)
        return self.pids()


@asynccontextmanager
async def running(grace_s: float = 5) -> AsyncIterator[Running]:
    started = Running(grace_s)
    try:
        yield started
    finally:
        for _ in range(2):
            if not started.task.done():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            await started.task
        for each in started.sockets:
            each.close()


async def test_worker_that_dies_is_replaced_and_frees_its_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as both:
        before = await both.serving()
        await both.until(lambda: both.segment.total(Field.REQUESTS) == 10)
        os.kill(before[1], signal.SIGKILL)
        await both.until(lambda: both.segment.total(Field.REQUESTS) == 5)
        after = await both.serving()
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert both.segment.total(Field.RESTARTS) == 1
    assert both.task.result() == 0
    assert "worker ended (killed by SIGKILL), 1 times in a row" in caplog.text


async def test_worker_that_hangs_is_killed_after_it_wrote_its_stacks(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    behave("hangs")
    async with running() as both:
        before = await both.serving()
        await both.until(lambda: before[1] not in both.pids())
        behave("serves")
        assert before[0] in await both.serving()
    assert "worker does not respond: killing it" in caplog.text
    assert "stacks of 1" in capfd.readouterr().err


async def test_what_prevents_a_start_ends_the_supervisor() -> None:
    behave("fails")
    async with running() as both:
        assert await both.task == 1


async def test_workers_that_fail_repeatedly_end_the_supervisor(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_FAILURES", 2)
    async with running() as both:
        pids = await both.serving()
        behave("fails")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            assert await both.task == 1
    assert "no worker serves: giving up" in caplog.text
    assert "(exit code 1), 2 times in a row: starting it again in 0.02 s" in caplog.text


@pytest.mark.full
async def test_one_worker_that_fails_repeatedly_does_not_end_the_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_FAILURES", 2)
    async with running() as both:
        pids = await both.serving()
        behave("fails")
        os.kill(pids[1], signal.SIGKILL)
        await both.until(lambda: "3 times in a row" in caplog.text)
        assert both.pids() == pids[:1]
        behave("serves")
        await both.serving()
    assert both.task.result() == 0


async def test_second_signal_reaches_all_workers(capfd: pytest.CaptureFixture[str]) -> None:
    behave("busy")
    async with running() as both:
        await both.serving()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert len(both.pids()) == 2
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            assert await both.task == 0
    assert {"0 ends after da", "1 ends after da"} <= set(capfd.readouterr().err.split("\n"))


@pytest.mark.full
async def test_worker_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    behave("busy")
    async with running(grace_s=0) as both:
        await both.serving()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await both.task == 1
    assert "worker has not ended in time: killing it" in caplog.text


@pytest.mark.full
async def test_stacks_of_all_workers_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    async with running() as both:
        await both.serving()
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.sleep(0.3)
        assert len(both.pids()) == 2
    assert {"stacks of 0", "stacks of 1"} <= set(capfd.readouterr().err.split("\n"))


def test_settings_reach_a_worker_as_they_are(tmp_path: Path) -> None:
    settings = GatewaySettings(workers=3, api_key="secret", max_input_tokens=7)
    message = Start(settings, 2, 9, 8081, RunFolder(tmp_path))
    reading, writing = os.pipe()
    os.write(writing, message.encode() + b"d")
    assert Start.read(reading) == message
    assert os.read(reading, 9) == b"d"
    os.close(writing)
    with pytest.raises(EOFError):
        Start.read(reading)
    os.close(reading)


@pytest.mark.parametrize("front", ["http_port", "grpc_port"])
def test_port_in_use_is_one_line(
    front: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    free = {"http_port": 0, "grpc_port": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = GatewaySettings(workers=2, repository=tmp_path, **free | {front: port})
        assert run_gateway(settings) == 1
    lines = [record.message for record in caplog.records if record.levelno > logging.INFO]
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]


def test_more_workers_than_cores_is_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("fails")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert run_gateway(GatewaySettings(workers=2, http_port=0, grpc_port=0)) == 1
    assert "2 workers share 1 cores" in caplog.text


LIMIT = 5
ALICE = ApiKey(name="alice", sha256="0" * 64, max_concurrent_requests=2, max_concurrent_tokens=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts"


@pytest.fixture
def segment(path: Path) -> Segment:
    return Segment(path, 3, KEYS)


def admission(path: Path, number: int, **limits: int) -> Admission:
    """As the worker of that number has it, with its own mapping of the memory."""
    most = {
        "max_requests": 9,
        "max_tokens": 99,
        "max_pixels": 99,
        "max_bytes": 99,
        "max_sequences": 9,
    }
    return Admission(**most | limits, counts=SharedCounts(Segment(path, 3, KEYS), number))


@contextlib.contextmanager
def of_key(key: ApiKey) -> Iterator[None]:
    token = KEY.set(key)
    try:
        yield
    finally:
        KEY.reset(token)


class Admitting:
    """A process that admits requests as the worker of a number."""

    def __init__(self, path: Path, number: int) -> None:
        command = (*PROGRAM, str(path), str(number), "3")
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def begin(self, kind: str, limit: int, run_s: float) -> None:
        self.child.stdin.write(f"{kind} {limit} {run_s}\n")
        self.child.stdin.flush()

    def spans(self) -> list[list[int]]:
        found: list[list[int]] = json.loads(self.child.stdout.readline())
        return found

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


def most_at_once(spans: list[list[int]]) -> int:
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = running = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def test_limits_hold_exactly_over_processes(path: Path, segment: Segment) -> None:
    processes = [Admitting(path, number) for number in range(3)]
    try:
        for process in processes:
            process.begin("requests", LIMIT, 0)
        for process in processes:
            process.spans()  # has started
        for kind in ("requests", "tokens", "key", "turns"):
            for _ in range(20):  # on a busy machine, all turns are seldom taken at once
                for process in processes:
                    process.begin(kind, LIMIT, 0.5)
                spans = [process.spans() for process in processes]
                assert sum(bool(own) for own in spans) > 1, "one process had all"
                most = most_at_once([span for own in spans for span in own])
                if most >= LIMIT:
                    break
            assert most == LIMIT
            for field in (Field.REQUESTS, Field.TOKENS, Field.TURNS, Field.OLDEST_NS):
                assert segment.total(field) == 0
    finally:
        for process in processes:
            process.kill()


def test_killed_process_frees_what_it_had_once_it_is_cleared(path: Path, segment: Segment) -> None:
    process = Admitting(path, 1)
    process.begin("turns", 1, 60)
    wait_until(lambda: segment.read(1, Field.TURNS) > 0)
    process.kill()
    assert segment.read(1, Field.REQUESTS) > 0
    segment.clear(1)
    assert [segment.total(field) for field in (Field.REQUESTS, Field.TURNS, Field.OLDEST_NS)] == [
        *(0, 0, 0)
    ]


async def test_requests_of_all_workers_count(path: Path) -> None:
    one, two = (admission(path, number, max_requests=2) for number in (0, 1))
    with one.request(), two.request():
        for refusing in (one, two):
            with pytest.raises(Overloaded, match="2 requests are being served, at most 2 at once"):
                refusing.check()
            with pytest.raises(Overloaded), refusing.request():
                pass
    with one.request(), two.request():
        pass


async def test_limits_of_a_key_hold_over_all_workers(path: Path) -> None:
    one, two = (admission(path, number) for number in (0, 1))
    with of_key(ALICE), one.request(), two.request():
        with pytest.raises(Overloaded, match="2 requests with this key"):
            one.check()
        with (
            one.reserve_tokens(6),
            pytest.raises(Overloaded, match="6 tokens"),
            two.reserve_tokens(5),
        ):
            pass
        with (
            of_key(ALICE.model_copy(update={"name": "bob"})),
            one.request(),
            two.reserve_tokens(10),
        ):
            pass
    with of_key(ALICE), one.request(), two.request(), two.reserve_tokens(10):
        pass


async def test_pixels_of_all_workers_count(path: Path) -> None:
    one, two = (admission(path, number, max_pixels=10) for number in (0, 1))
    key = ALICE.model_copy(update={"max_concurrent_pixels": 8})
    with one.request(), one.pixels() as reserve, two.request():
        reserve(6)
        with pytest.raises(Overloaded, match="images of 6 pixels"), two.pixels() as others:
            others(5)
        with of_key(key), two.request(), two.pixels() as others:
            others(4)
    with of_key(key), one.request(), one.pixels() as reserve:
        reserve(8)


async def test_bytes_of_all_workers_count(path: Path) -> None:
    one, two = (admission(path, number, max_bytes=10) for number in (0, 1))
    key = ALICE.model_copy(update={"max_concurrent_bytes": 8})
    with one.body() as reserve:
        reserve(FREE_BYTES + 6)
        with pytest.raises(Overloaded, match="bodies of 6 bytes"), two.body() as others:
            others(FREE_BYTES + 5)
        with two.body() as others:
            others(FREE_BYTES)
        with of_key(key), two.body() as others:
            others(FREE_BYTES + 4)
    with of_key(key), one.body() as reserve:
        reserve(FREE_BYTES + 8)
        with pytest.raises(Overloaded, match="with this key"), two.body() as others:
            others(FREE_BYTES + 1)


async def test_bytes_that_arrived_before_the_key_are_those_of_the_key(path: Path) -> None:
    counts = admission(path, 0)
    with counts.body() as reserve:
        reserve(FREE_BYTES + 6)
        with of_key(ALICE):
            reserve(FREE_BYTES + 6)
            assert counts._counts.of_key("alice").bytes == 6
    assert counts._counts.of_key("alice").bytes == counts._counts.total().bytes == 0


async def test_worker_that_replaces_a_killed_one_begins_with_nothing(
    path: Path, segment: Segment
) -> None:
    before, other = admission(path, 0, max_requests=3), admission(path, 1, max_requests=3)
    with of_key(ALICE), before.request(), before.request():
        with pytest.raises(Overloaded):
            other.check()
        segment.clear(0)
        after = admission(path, 0, max_requests=3)
        with after.request(), other.request():
            pass
        segment.clear(0)


def test_more_keys_than_rows_take_turns(path: Path) -> None:
    counts, other = (SharedCounts(Segment(path, 2, 3), number) for number in (0, 1))
    for number in range(20):
        names = [f"key-{number}-{part}" for part in range(3)]
        for tokens, name in enumerate(names, 1):
            counts.add(name, Usage(requests=1, tokens=tokens))
        assert [other.of_key(name) for name in names] == [Usage(1, 1), Usage(1, 2), Usage(1, 3)]
        for tokens, name in enumerate(names, 1):
            counts.add(name, Usage(requests=-1, tokens=-tokens))
        assert other.of_key(names[0]) == Usage()


def test_key_without_a_row_is_refused_before_it_counts(path: Path) -> None:
    counts = SharedCounts(Segment(path, 2, 2), 0)
    for name in ("one", "two"):
        counts.add(name, Usage(requests=1))
    with pytest.raises(Overloaded, match="too many keys"):
        counts.add("three", Usage(requests=1))
    assert counts.total() == Usage(requests=2)


def test_load_is_of_all_workers(path: Path, segment: Segment) -> None:
    one, two = (SharedCounts(Segment(path, 3, KEYS), number) for number in (0, 1))
    segment.words[segment.place(0, Field.BEATS)] = 7
    segment.words[segment.place(2, Field.BEATS)] = 1
    segment.words[segment.place(1, Field.RESTARTS)] = 4
    one.add(None, Usage(tokens=5))
    two.load(3)
    load = one.load(2)
    assert (load.queued, load.tokens, load.workers, load.worker_restarts) == (5, 5, 2, 4)
    assert two.load(0).queued == 2


def test_requests_of_other_workers_are_elsewhere(path: Path, segment: Segment) -> None:
    one, two = (SharedCounts(Segment(path, 3, KEYS), number) for number in (0, 1))
    one.add(None, Usage(requests=2))
    two.add(None, Usage(requests=5))
    assert (one.requests_elsewhere(), two.requests_elsewhere()) == (5, 2)


def test_local_counts_forget_a_key_without_requests() -> None:
    counts = LocalCounts()
    counts.add("alice", Usage(requests=1, tokens=3))
    assert (counts.of_key("alice"), counts.total()) == (Usage(1, 3), Usage(1, 3))
    counts.add("alice", Usage(requests=-1, tokens=-3))
    assert (counts.of_key("alice"), counts.total(), counts._keys) == (Usage(), Usage(), {})


def turns(path: Path, limit: int, number: int) -> FairTurns:
    return FairTurns(SharedTurns(Segment(path, 3, KEYS), number, limit))


async def test_turn_goes_to_the_caller_that_waits_longest_in_any_worker(path: Path) -> None:
    one, two = turns(path, 1, 0), turns(path, 1, 1)
    order: list[int] = []

    async def caller(number: int) -> None:
        async with (one, two)[number // 2 % 2].turn(-60 if number == 1 else 0):
            order.append(number)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(10), asyncio.TaskGroup() as callers:
        for number in range(6):
            callers.create_task(caller(number))
            await asyncio.sleep(0.001)
    assert order == [0, 2, 3, 4, 5, 1]


async def test_cancelled_caller_leaves_no_trace(path: Path, segment: Segment) -> None:
    one, two = turns(path, 1, 0), turns(path, 1, 1)
    await one.acquire(None)
    waiting = asyncio.create_task(two.acquire(None))
    await asyncio.sleep(0.01)
    assert segment.read(1, Field.OLDEST_NS) > 0
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert segment.read(1, Field.OLDEST_NS) == 0
    given = asyncio.create_task(one.acquire(None))
    await asyncio.sleep(0)
    one.release(None)
    given.cancel()  # after it was given the turn, before it ran
    await asyncio.wait((given,))
    assert given.cancelled()
    assert segment.total(Field.TURNS) == 0


async def test_turn_given_back_goes_to_the_next_caller_of_the_worker_at_once(
    path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedTurns, "poll_s", 3600)
    one = turns(path, 2, 0)
    callers = [asyncio.create_task(one.acquire(key)) for key in [*"aaaaaaaa", "b"]]
    await settled()
    for waiting, key in zip((*range(6, -1, -1), 0, 0), "abaaaaaaa", strict=True):
        one.release(key)
        assert one.waiting == waiting
    await asyncio.gather(*callers)
    assert [segment.total(field) for field in (Field.TURNS, Field.OLDEST_NS)] == [0, 0]


async def test_worker_that_hangs_delays_others_only_briefly(path: Path, segment: Segment) -> None:
    two = turns(path, 1, 1)
    segment.words[segment.place(0, Field.OLDEST_NS)] = 1  # waits since the machine was started
    async with asyncio.timeout(10):
        await two.acquire(None)
    two.release(None)
    assert segment.total(Field.TURNS) == 0
