"""`triptych serve` hands its settings on to its two commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.commands.serve import Processes
from triptych import cli

PORTS = ("--http-port", "0", "--grpc-port", "0")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sequence[str]]:
    """What `serve` would run, by name."""
    found: dict[str, Sequence[str]] = {}

    def run(self: Processes, *_: object) -> int:
        found.update(self._commands)
        return 0

    monkeypatch.setattr(Processes, "run", run)
    return found


def serve(repository: Path, *flags: str) -> int:
    return cli.run(["serve", "--repository", str(repository), *PORTS, *flags])


def test_capacity_of_flags_and_environment_reaches_triton(
    commands: dict[str, Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIPTYCH_PREFIX_MEMORY", "0")
    assert serve(tmp_path, "--max-rows=4", "--state-memory", "2KiB", "--device", "cuda:1") == 0
    expected = {"--max-rows=4", "--state-memory=2048", "--prefix-memory=0", "--device=cuda:1"}
    assert expected < set(commands["triton"])
    assert not expected & set(commands["gateway"])


def test_each_command_gets_the_settings_that_it_has(
    commands: dict[str, Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIPTYCH_WATCH", "1")
    flags = ["--otlp-endpoint", "http://collector:4318", "--workers", "2", "--no-watch"]
    assert serve(tmp_path, *flags) == 0
    triton, gateway = (set(commands[name]) for name in ("triton", "gateway"))
    both = {f"--repository={tmp_path}", "--otlp-endpoint=http://collector:4318/"}
    assert both | {"--no-watch"} < triton
    assert both | {"--workers=2", "--host=127.0.0.1", "--glossaries=glossaries"} < gateway
    assert not any(word.startswith(("--host", "--workers", "--glossaries")) for word in triton)
    assert not any(word.startswith("--no-watch") for word in gateway)


def test_gateway_gets_the_addresses_of_triton(
    commands: dict[str, Sequence[str]], tmp_path: Path
) -> None:
    assert serve(tmp_path) == 0
    triton, gateway = commands["triton"], commands["gateway"]
    ports = dict(word[2:].split("-port=") for word in triton if "-port=" in word)
    assert gateway[gateway.index("--triton") + 1] == f"127.0.0.1:{ports['grpc']}"
    assert gateway[gateway.index("--triton-metrics") + 1] == f"127.0.0.1:{ports['metrics']}"
    chosen = [word for word in gateway if word.startswith(("--http-port=", "--grpc-port="))]
    assert len(chosen) == 2
    assert not any(word.endswith("=0") for word in chosen), "ports are chosen before the start"


def test_secrets_of_the_environment_are_no_arguments(
    commands: dict[str, Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other users can read the arguments of a process."""
    monkeypatch.setenv("TRIPTYCH_API_KEY", "a-secret")
    assert serve(tmp_path) == 0
    assert not any("a-secret" in word for command in commands.values() for word in command)


def test_missing_repository_is_refused(
    commands: dict[str, Sequence[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert serve(tmp_path / "absent") == 1
    assert "no such folder" in capsys.readouterr().err
    assert commands == {}
