"""Systems in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.system import System, start_systems
from tests.benchmarks.harness import echo


def test_systems_answer_with_cpu_time_and_memory_and_end(tmp_path: Path) -> None:
    systems = (System("echo", "fp32"), System("echo", "fp32", threads=1))
    with start_systems(echo.__name__, systems, "m", tmp_path / "cache") as processes:
        for system in systems:
            found = processes[system].run({"value": 3})
            assert (found["value"], found["model"], found["system"]) == (3, "m", system.label)
            assert found["cpu_seconds"] >= 0
            assert found["peak_bytes"] > 2**20
    assert systems[1].label == "echo fp32, 1 thread"


def test_worker_that_ends_names_its_log(tmp_path: Path) -> None:
    systems = [System("echo", "fp32")]
    with (
        start_systems(echo.__name__, systems, "m", tmp_path) as processes,
        pytest.raises(RuntimeError, match=r"harness-m-echo-fp32\.log"),
    ):
        processes[systems[0]].run({"value": "fail"})
    assert "cannot echo" in (tmp_path / "harness-m-echo-fp32.log").read_text()
