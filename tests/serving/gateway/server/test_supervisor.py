"""The supervisor of workers, over programs that stand in for them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serving.gateway import run_gateway
from serving.gateway.server import supervisor, worker_process
from serving.gateway.server.shared_counts import Field
from serving.gateway.server.supervisor import Supervisor
from serving.gateway.server.worker_process import RunFolder, Start
from serving.settings.gateway_settings import GatewaySettings

STANDING_IN = (sys.executable, "-m", "tests.serving.gateway.server.standing_in")
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_process, "_PROGRAM", STANDING_IN)
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
    """A supervisor of two workers on this event loop."""

    def __init__(self, tmp_path: Path, grace_s: float) -> None:
        settings = GatewaySettings(
            workers=2, api_key="secret", graceful_termination_timeout=grace_s
        )
        self.sockets = (socket.create_server(("127.0.0.1", 0)), socket.socket())
        self.sockets[1].bind(("127.0.0.1", 0))
        folder = tmp_path / "run"
        folder.mkdir()
        self.supervisor = Supervisor(settings, RunFolder(folder), *self.sockets)
        self.segment = self.supervisor._segment
        self.task = asyncio.create_task(self.supervisor.run())

    def pids(self) -> list[int]:
        return [worker.pid for worker in self.supervisor._running if worker.beats]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_so():
                await asyncio.sleep(0.01)

    async def serving(self) -> list[int]:
        """The processes, once both serve."""
        await self.until(lambda: len(self.pids()) == 2)
        return self.pids()


@asynccontextmanager
async def running(tmp_path: Path, grace_s: float = 5) -> AsyncIterator[Running]:
    started = Running(tmp_path, grace_s)
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as both:
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    behave("hangs")
    async with running(tmp_path) as both:
        before = await both.serving()
        await both.until(lambda: before[1] not in both.pids())
        behave("serves")
        assert before[0] in await both.serving()
    assert "worker does not respond: killing it" in caplog.text
    assert "stacks of 1" in capfd.readouterr().err


async def test_what_prevents_a_start_ends_the_supervisor(tmp_path: Path) -> None:
    behave("fails")
    async with running(tmp_path) as both:
        assert await both.task == 1


async def test_workers_that_fail_repeatedly_end_the_supervisor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_FAILURES", 2)
    async with running(tmp_path) as both:
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_FAILURES", 2)
    async with running(tmp_path) as both:
        pids = await both.serving()
        behave("fails")
        os.kill(pids[1], signal.SIGKILL)
        await both.until(lambda: "3 times in a row" in caplog.text)
        assert both.pids() == pids[:1]
        behave("serves")
        await both.serving()
    assert both.task.result() == 0


async def test_second_signal_reaches_all_workers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    behave("busy")
    async with running(tmp_path) as both:
        await both.serving()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert len(both.pids()) == 2
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            assert await both.task == 0
    assert {"0 ends after da", "1 ends after da"} <= set(capfd.readouterr().err.split("\n"))


@pytest.mark.full
async def test_worker_that_does_not_end_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    behave("busy")
    async with running(tmp_path, grace_s=0) as both:
        await both.serving()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await both.task == 1
    assert "worker has not ended in time: killing it" in caplog.text


@pytest.mark.full
async def test_stacks_of_all_workers_are_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path) as both:
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
