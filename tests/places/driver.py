"""Starts the service in a place, and checks what is expected there."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from examples.demo.server import local_client
from tests.places.place import MARK, MODELS, Place, Running, Start, make_start
from triptych.client.grpc_client import GrpcClient
from triptych.errors import TriptychError

READY_S = 90.0
"""Time limits are for a machine that is busy with other tests."""
STOP_S = 60.0
SPANISH, ENGLISH = "el mundo no es suficiente", "the world is not enough"
_LINES_OF_A_REFUSAL = 16


def check(place: Place, repository: Path) -> None:
    """Start the service in a place, ask it or read its refusal, and stop it."""
    with ExitStack() as on_end:
        start = make_start(repository, on_end)
        for prepare in place.prepare:
            prepare(start)
        if place.says is None:
            with serving(start) as running:
                place.meanwhile(running)
                answers(running, place.served)
                command_answers(running, place.command_says)
            starts_without_noise(running, place.logs)
        else:
            refuses(start, place.says)
        nothing_is_left(start)


@contextmanager
def serving(start: Start) -> Iterator[Running]:
    """`triptych serve` for as long as the block runs; SIGTERM ends it with code 0."""
    running = begin(start)
    try:
        wait_until_ready(running)
        yield running
    except BaseException as error:
        error.add_note(running.log.read_text("utf-8", "replace")[-5000:])
        raise
    finally:
        code = stop(running.process)
    assert code == 0, running.log.read_text("utf-8", "replace")


def begin(start: Start) -> Running:
    """Start it; it is not ready yet."""
    log = start.folder / f"serve-{start.http_port}.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            start.server(), cwd=start.current, env=start.environment, stdout=sink, stderr=sink
        )
    return Running(start, process, log)


def stop(process: subprocess.Popen[bytes]) -> int:
    """The exit code after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def wait_until_ready(running: Running) -> None:
    with local_client(running.url, timeout=5) as client:

        def is_ready() -> bool:
            assert running.process.poll() is None, "it ended"
            with suppress(TriptychError):
                return bool(client.ready())
            return False

        wait_until(is_ready, READY_S)


def wait_until(claim: Callable[[], bool], timeout_s: float = READY_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)


def answers(running: Running, served: Sequence[str] = MODELS) -> None:
    """The models that are served answer over HTTP, and the translator over gRPC."""
    with local_client(running.url, timeout=60) as client:
        assert {model.id for model in client.models().data} == set(served)
        assert client.translate(SPANISH).data[0].text == ENGLISH
        if "example-bert-embed" in served:
            one, other = client.embed(["a small dog", "a small dog"]).data
            assert one.embedding == other.embedding
            assert sum(x * x for x in one.embedding) == pytest.approx(1, abs=1e-3)
    with GrpcClient(running.grpc_address, timeout=60) as grpc:
        assert grpc.translate(SPANISH).data[0].text == ENGLISH


def command_answers(running: Running, says: str | None) -> None:
    """`triptych translate` in the same place prints the answer, or one line why it cannot."""
    start = running.start
    done = subprocess.run(
        start.client("translate", "--url", running.url, SPANISH),
        cwd=start.current,
        env=start.environment,
        capture_output=True,
        timeout=READY_S,
        check=False,
    )
    printed, error = done.stdout.decode(), done.stderr.decode()
    if says is None:
        assert (done.returncode, printed.strip(), error) == (0, ENGLISH, "")
    else:
        assert done.returncode
        assert re.search(says, error), error
        assert len(error.splitlines()) == 1, error


def starts_without_noise(running: Running, logs: str | None) -> None:
    """The log has neither a stack trace nor the probes of the start."""
    log = running.log.read_text("utf-8", "replace")
    assert "Traceback" not in log, log
    assert "/ready" not in log, log
    assert logs is None or re.search(logs, log), log


def refuses(start: Start, says: str) -> None:
    """It ends by itself, soon, and a line of the few that it prints says why."""
    running = begin(start)
    try:
        code = running.process.wait(READY_S)
    except subprocess.TimeoutExpired:
        code = stop(running.process)
    log = running.log.read_text("utf-8", "replace")
    assert code > 0, log
    assert re.search(says, log), log
    assert "Traceback" not in log, log
    assert len(log.splitlines()) <= _LINES_OF_A_REFUSAL, log


def nothing_is_left(start: Start) -> None:
    """No process of this start lives, and its temporary folder has no file of ours or Triton's."""
    wait_until(lambda: not processes(start), STOP_S)
    names = ("triptych_*", "python_env_*")
    assert [path for name in names for path in start.temporary.glob(name)] == []


def processes(start: Start) -> list[psutil.Process]:
    """Those that this start has begun, whatever their parents are now."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == start.environment[MARK]:
                found.append(process)
    return found
