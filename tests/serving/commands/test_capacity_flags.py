"""`triptych serve` and `triptych triton` say how much an engine holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.commands.processes import Processes
from serving.settings.capacity import CapacitySettings
from triptych import cli


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each Triton that would have run."""
    settings: list[Any] = []
    monkeypatch.setattr(
        "serving.commands.triton.run_triton",
        lambda given, *, json_output: settings.append(given) or 0,
    )
    return settings


@pytest.mark.parametrize("command", ["serve", "triton"])
def test_help_lists_flags_and_variables(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    for name in CapacitySettings.model_fields:
        assert f"--{name.replace('_', '-')} " in text
        assert f"TRIPTYCH_{name.upper()}" in text


def test_flags_go_before_the_environment(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_MAX_ROWS", "7")
    monkeypatch.setenv("TRIPTYCH_STATE_MEMORY", "1GiB")
    assert cli.run(["triton", "--max-rows", "5"]) == 0
    assert started[0].capacity == CapacitySettings(max_rows=5, state_memory=1 << 30)


def test_serve_passes_flags_to_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: dict[str, Any] = {}

    def run(self: Processes, *_: object) -> int:
        commands.update(self._commands)
        return 0

    monkeypatch.setattr(Processes, "run", run)
    monkeypatch.setenv("TRIPTYCH_PREFIX_MEMORY", "0")
    ports = ["--http-port", "0", "--grpc-port", "0"]
    told = ["--max-rows=4", "--state-memory", "2KiB"]
    assert cli.run(["serve", "--repository", str(tmp_path), *ports, *told]) == 0
    assert {"--max-rows=4", "--state-memory=2048", "--prefix-memory=0"} < set(commands["triton"])


@pytest.mark.parametrize("command", ["serve", "triton"])
def test_a_bad_value_is_one_line_before_anything_starts(
    command: str, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command, "--state-memory", "2 apples"]) == 1
    error = capsys.readouterr().err
    assert "state_memory is '2 apples'" in error
    assert error.count("\n") == 1
    assert started == []


def test_port_of_tritons_http_is_ignored_with_one_line(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts that give it go on working."""
    assert cli.run(["triton", "--http-port", "8000", "--grpc-port", "9001"]) == 0
    assert not hasattr(started[0], "http_port")
    assert started[0].grpc_port == 9001
    assert capsys.readouterr().err.count("--http-port is ignored") == 1
