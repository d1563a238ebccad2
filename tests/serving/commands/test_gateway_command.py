"""`triptych gateway` has a flag for each setting and hands the settings over validated."""

from typing import Any

import pytest

from serving.settings.gateway_settings import GatewaySettings
from triptych import cli


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each gateway that would have run."""
    settings: list[Any] = []
    monkeypatch.setattr(
        "serving.commands.gateway.run_gateway", lambda given: settings.append(given) or 0
    )
    return settings


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["gateway", "--help"]) == 0
    text = capsys.readouterr().out
    for name in GatewaySettings.model_fields:
        assert f"--{name.replace('_', '-')}" in text
        assert f"$TRIPTYCH_{name.upper()}" in text


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


@pytest.mark.parametrize("value", ["x", "99999"])
def test_a_value_out_of_range_names_its_flag(
    started: list[Any], capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert cli.run(["gateway", "--http-port", value]) == 2
    error = capsys.readouterr().err
    assert "--http-port" in error
    assert error.count("\n") == 1
    assert started == []
