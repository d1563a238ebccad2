"""The readiness probe of a Triton container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving import probe
from serving.triton import TritonServer, TritonSettings
from tests.serving.triton.tiny import publish_times


@pytest.mark.integration
def test_triton_without_a_model_is_alive_and_not_ready(tmp_path: Path) -> None:
    with TritonServer(TritonSettings(tmp_path)) as server:
        assert probe.problem(server.http_address) == "no model is loaded"
        publish_times(tmp_path, "twice", 2)
        server.load("twice")
        assert probe.problem(server.http_address) is None
        command = [sys.executable, "-m", "serving.probe", server.http_address]
        assert subprocess.run(command, timeout=30, check=False).returncode == 0


def test_no_response_is_one_line_and_exit_code_1() -> None:
    command = [sys.executable, "-m", "serving.probe", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("not ready: no response from 127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1
