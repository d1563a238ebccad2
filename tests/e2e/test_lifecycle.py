"""Starting, surviving, stopping: what an operator sees of `triptych serve`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAM, Stack
from tests.e2e.workload import stub_of
from triptych import Client

pytestmark = pytest.mark.integration


def eventually(claim: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.1)
    return claim()


def test_a_killed_model_process_is_healed_and_answers_again(stack: Stack, client: Client) -> None:
    expected = client.translate("el mundo no es suficiente").data[0].text
    os.kill(stub_of(stack.process.pid, "example-es-en"), signal.SIGKILL)

    def answers() -> bool:
        try:
            return client.translate("el mundo no es suficiente").data[0].text == expected
        except Exception:
            return False

    assert eventually(answers)
    assert eventually(client.ready)


def test_a_port_in_use_is_one_clear_line(repository: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*PROGRAM, "serve", "--repository", str(repository), "--http-port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert port in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
