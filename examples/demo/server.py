"""`triptych serve` on free ports, for the demo, for benchmarks and for tests."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx

from examples.demo.encoders import console
from triptych import Client
from triptych.errors import TriptychError

READY_TIMEOUT_S = 120.0


@contextmanager
def serving(repository: Path, *options: str) -> Iterator[str]:
    """`triptych serve` on free ports for as long as the block runs; yields the gateway's URL."""
    http_port, grpc_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "triptych", "serve"),
        *("--repository", str(repository)),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port), *options),
    ]
    url = f"http://127.0.0.1:{http_port}"
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with console.status("starting Triton and the gateway"):
                wait_until_ready(url, server, log)
            yield url
        finally:
            stop(server)


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: BinaryIO) -> None:
    """Returns when `/ready` answers 200.

    Raises:
        SystemExit: the server ended, or was not ready in time; with the last lines of its log.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    with local_client(url, timeout=5) as client:
        while time.monotonic() < deadline:
            if server.poll() is not None:
                code = server.returncode
                raise SystemExit(f"{last_lines(log)}\ntriptych serve ended with code {code}")
            try:
                if client.ready():
                    return
            except TriptychError:
                pass
            time.sleep(0.1)
    raise SystemExit(f"{last_lines(log)}\nnot ready after {READY_TIMEOUT_S:.0f} s")


def local_client(url: str, timeout: float) -> Client:
    """A client of a server on this machine, which no proxy of the environment reaches."""
    return Client(url, timeout=timeout, transport=httpx.HTTPTransport())


def last_lines(log: BinaryIO, count: int = 20) -> str:
    """The last lines of a file."""
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-count:])


def stop(server: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM and waits for the process."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)


def free_port() -> int:
    """A TCP port of loopback without a listener at the moment of the call.

    It is none of those that the system gives to connections and to servers without a port of their
    own: one of them could have it before the caller listens.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [*range(10_000, first), *range(last + 1, 1 << 16)] or [0]
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().choice(ports)))
            return int(probe.getsockname()[1])
