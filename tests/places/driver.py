"""Starts the service in a place, and checks what is expected there."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from examples.demo.server import free_port, local_client
from serving.local_http import request
from tests.e2e.workload import stub_of
from tests.places.place import MARK, MODELS, Place, Running, Start, make_start
from triptych.client.grpc_client import GrpcClient
from triptych.errors import TriptychError

DRAIN_S = 10
"""Longer than the next server takes to look for its ports."""
_MOST_PROCESSES = 20
"""Of a server with two models and two cores."""


def killed_while_busy(start: Start) -> None:
    """Have a server on the same ports be killed while a stopped model has a request of it."""
    start.environment["TRIPTYCH_GRACEFUL_TERMINATION_TIMEOUT"] = str(DRAIN_S)
    running = begin(start)
    try:
        wait_until_ready(running)
        os.kill(stub_of(running.process.pid, "example-es-en"), signal.SIGSTOP)
        client = start.on_end.enter_context(
            socket.create_connection((start.host, start.http_port), timeout=READY_S)
        )
        client.sendall(
            b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 16\r\n\r\n{"texts": "uno"}'
        )
        wait_until(lambda: not re.search(r"_tokens_in_flight 0(\.0)?$", metrics(running), re.M))
    finally:
        running.process.kill()
        running.process.wait()


def metrics(running: Running) -> str:
    address = running.url.removeprefix("http://")
    return request(address, "GET", "/metrics", timeout_s=READY_S).body.decode()


def beside_another(start: Start) -> None:
    """Have another server on the same repository be ready."""
    ports = {"http_port": free_port(), "grpc_port": free_port()}
    other = begin(dataclasses.replace(start, **ports))
    start.on_end.callback(other.process.kill)
    start.others.append(other)
    wait_until_ready(other)


def others_end(running: Running) -> None:
    """End the other servers, soon after which commands reach this one."""
    start = running.start
    for other in start.others:
        assert stop(other.process) == 0
    command = start.client("reload", "--repository", str(start.repository))

    def is_reached() -> bool:
        done = subprocess.run(
            command, cwd=start.current, env=start.environment, capture_output=True, check=False
        )
        return not done.returncode

    wait_until(is_reached)


def few_processes(running: Running) -> None:
    """The server has not a process for each core that the machine reports."""
    assert len(processes(running.start)) <= _MOST_PROCESSES


def repository_goes_away(running: Running) -> None:
    """Rename the repository until that is logged, and back."""
    repository = running.start.repository
    away = repository.rename(repository.with_name("away"))
    wait_until(lambda: "No such file" in running.log.read_text("utf-8", "replace"))
    away.rename(repository)
    wait_until_ready(running)
    assert "chmod" not in running.log.read_text("utf-8", "replace")


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


def killed_supervisor_ends_it(start: Start) -> None:
    """Kill the supervisor of a server that is ready; `triptych serve` says so and ends."""
    running = begin(start)
    try:
        wait_until_ready(running)
        [supervisor] = [
            process
            for process in psutil.Process(running.process.pid).children()
            if "triton" in process.cmdline()
        ]
        supervisor.kill()
        assert running.process.wait(STOP_S) == 1
    finally:
        running.process.kill()
        running.process.wait()
    assert "triton ended (killed by SIGKILL)" in running.log.read_text("utf-8", "replace")


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
