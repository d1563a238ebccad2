"""What happens beside a server, before it starts or while it is ready."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess

from examples.demo.server import free_port
from serving.local_http import request
from tests.e2e.introspection import stub_of
from tests.places.driver import READY_S, begin, processes, stop, wait_until, wait_until_ready
from tests.places.place import Running, Start

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
