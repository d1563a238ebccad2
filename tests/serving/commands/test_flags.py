"""Each setting of `serve`, `triton` and `gateway` is a flag and a variable, read in one way."""

from __future__ import annotations

from typing import Any

import pytest

from serving.settings.command_settings import CommandSettings
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.model_settings import ServeSettings
from serving.settings.triton_settings import TritonSettings
from triptych import cli

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


def test_unknown_flag_is_refused(started: list[Any]) -> None:
    assert cli.run(["triton", "--program", "tritonserver"]) == 2
    assert started == []


def test_port_of_tritons_http_is_ignored_with_one_line(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts that give it go on working."""
    assert cli.run(["triton", "--http-port", "8000", "--grpc-port", "9001"]) == 0
    assert not hasattr(started[0], "http_port")
    assert started[0].grpc_port == 9001
    assert capsys.readouterr().err.count("--http-port is ignored") == 1
