"""Flags of `serve`, `triton`, `gateway` and `key`."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving.commands.serve import Processes
from serving.gateway.admission.auth import KEY, Keys
from serving.settings.command_settings import CommandSettings
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.triton_settings import ServeSettings, TritonSettings
from triptych import cli
from triptych.cli import app

SETTINGS: dict[str, type[CommandSettings]] = {
    "serve": ServeSettings,
    "triton": TritonSettings,
    "gateway": GatewaySettings,
}
each_command = pytest.mark.parametrize("command", SETTINGS)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each command that would have run."""
    settings: list[Any] = []
    for command in ("triton", "gateway"):
        monkeypatch.setattr(
            f"serving.commands.{command}.run_{command}", lambda given: settings.append(given) or 0
        )
    return settings


@each_command
def test_help_lists_every_setting_and_its_variable(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    settings = SETTINGS[command]
    listed = {name for name in settings.model_fields if f"--{name.replace('_', '-')} " in text}
    assert listed == set(settings.model_fields) - {"program"}
    variables = {name for name in settings.model_fields if f"$TRIPTYCH_{name.upper()}." in text}
    assert variables == listed - settings.without_variable


def test_help_has_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["triton", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "$TRIPTYCH_STUCK_AFTER. [30.0]" in text
    assert "one. [127.0.0.1]" in text
    assert "Undefined" not in text


def test_flags_win_over_the_environment(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_MAX_INPUT_TOKENS", "77")
    monkeypatch.setenv("TRIPTYCH_HTTP_PORT", "1")
    origins = "http://a, http://b"
    flags = ["--http-port", "0", "--json-output", "--cors-allow-origin", origins]
    assert cli.run(["gateway", *flags]) == 0
    (settings,) = started
    assert (settings.http_port, settings.max_input_tokens) == (0, 77)
    assert settings.task_limits.max_input_tokens == 77
    assert settings.json_output is True
    assert settings.cors_allow_origin == ("http://a", "http://b")
    assert settings.request_timeout == GatewaySettings.model_fields["request_timeout"].default


def test_capacity_is_of_flags_then_of_the_environment(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_MAX_ROWS", "7")
    monkeypatch.setenv("TRIPTYCH_STATE_MEMORY", "1GiB")
    assert cli.run(["triton", "--max-rows", "5"]) == 0
    assert started[0].parameters() == {"max_rows": "5", "state_memory": str(1 << 30)}


def test_switch_is_turned_off_by_a_flag(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_WATCH", "true")
    assert cli.run(["triton"]) == cli.run(["triton", "--no-watch"]) == 0
    assert [each.watch for each in started] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["gateway", "--http-port", "x"], {}, "--http-port: Input should be a valid integer"),
        (["gateway", "--http-port", "99999"], {}, "--http-port: Input should be less than"),
        (["triton", "--stuck-after", "nan"], {}, "--stuck-after: Input should be "),
        (
            ["serve", "--state-memory", "2 apples"],
            {},
            "--state-memory: could not interpret byte unit",
        ),
        (
            ["triton", "--state-memory", "2 apples"],
            {},
            "--state-memory: could not interpret byte unit",
        ),
        (["serve"], {"MAX_ROWS": "0"}, "$TRIPTYCH_MAX_ROWS: Input should be greater than"),
        (["gateway"], {"API_KEY": ""}, "$TRIPTYCH_API_KEY: Value should have at least 1 item"),
        (["serve", "--device", "gpu"], {}, "--device: 'gpu' is no device: supported are cpu"),
        (["triton", "--program", "tritonserver"], {}, "--program"),
        (
            ["triton", "--max-prefill-tokens=5", "--max-prefill-tokens-beside=9"],
            {},
            "max_prefill_tokens_beside (9) must not exceed max_prefill_tokens (5)",
        ),
    ],
)
def test_a_bad_value_is_one_line_that_names_its_flag_or_variable(
    started: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    variables: dict[str, str],
    message: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TRIPTYCH_{name}", value)
    assert cli.run(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
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


Commands = dict[str, Sequence[str]]
PORTS = ("--http-port", "0", "--grpc-port", "0")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What `serve` would run, by name."""
    found: Commands = {}

    def run(self: Processes, *_: object) -> int:
        found.update(self._commands)
        return 0

    monkeypatch.setattr(Processes, "run", run)
    return found


def serve(repository: Path, *flags: str) -> int:
    return cli.run(["serve", "--repository", str(repository), *PORTS, *flags])


def test_capacity_of_flags_and_environment_reaches_triton(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIPTYCH_PREFIX_MEMORY", "0")
    assert serve(tmp_path, "--max-rows=4", "--state-memory", "2KiB", "--device", "cuda:1") == 0
    expected = {"--max-rows=4", "--state-memory=2048", "--prefix-memory=0", "--device=cuda:1"}
    assert expected < set(commands["triton"])
    assert not expected & set(commands["gateway"])


def test_each_command_gets_the_settings_that_it_has(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def test_gateway_gets_the_addresses_of_triton(commands: Commands, tmp_path: Path) -> None:
    assert serve(tmp_path) == 0
    triton, gateway = commands["triton"], commands["gateway"]
    ports = dict(word[2:].split("-port=") for word in triton if "-port=" in word)
    assert gateway[gateway.index("--triton") + 1] == f"127.0.0.1:{ports['grpc']}"
    assert gateway[gateway.index("--triton-metrics") + 1] == f"127.0.0.1:{ports['metrics']}"
    chosen = [word for word in gateway if word.startswith(("--http-port=", "--grpc-port="))]
    assert len(chosen) == 2
    assert not any(word.endswith("=0") for word in chosen), "ports are chosen before the start"


def test_secrets_of_the_environment_are_no_arguments(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other users can read the arguments of a process."""
    monkeypatch.setenv("TRIPTYCH_API_KEY", "a-secret")
    assert serve(tmp_path) == 0
    assert not any("a-secret" in word for command in commands.values() for word in command)


RUN = CliRunner()


def make(file: Path, name: str, *flags: str) -> str:
    done = RUN.invoke(app, ["key", name, "--file", str(file), *flags])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()[0]


def test_keys_are_made_and_accepted(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    alice = make(file, "alice")
    bob = make(file, "bob", "--max-concurrent-requests", "3", "--max-concurrent-pixels", "500")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert alice not in file.read_text()
    keys = Keys(file=file)
    keys.check(alice)
    keys.check(bob)
    found = KEY.get()
    assert (found.name, found.max_concurrent_requests, found.max_concurrent_pixels) == (
        "bob",
        3,
        500,
    )


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "ä", "default", 'a"b'])
def test_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "keys.toml"
    done = RUN.invoke(app, ["key", name, "--file", str(file)])
    assert done.exit_code != 0
    assert not file.exists()


def test_nothing_is_lost_by_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    make(file, "alice")
    before = file.read_text()
    assert RUN.invoke(app, ["key", "alice", "--file", str(file)]).exit_code != 0
    assert file.read_text() == before
    file.write_text("keys = 3")
    assert RUN.invoke(app, ["key", "bob", "--file", str(file)]).exit_code != 0
    assert file.read_text() == "keys = 3"
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]
