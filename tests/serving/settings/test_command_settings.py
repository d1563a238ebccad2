"""Settings that several commands have."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.settings.command_settings import CommandSettings
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.model_settings import ModelSettings, ServeSettings
from serving.settings.triton_settings import TritonSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (GatewaySettings, TritonSettings, ServeSettings):
        for name in settings.model_fields:
            monkeypatch.delenv(f"TRIPTYCH_{name.upper()}", raising=False)
    monkeypatch.delenv("TRITONSERVER", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)


def test_serve_has_no_setting_that_neither_of_its_commands_has() -> None:
    both = {*GatewaySettings.model_fields, *TritonSettings.model_fields}
    assert set(ServeSettings.model_fields) <= both


def test_addresses_of_triton_are_never_those_of_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`TRIPTYCH_HOST=0.0.0.0` publishes the gateway; Triton's ports are never public."""
    monkeypatch.setenv("TRIPTYCH_HOST", "0.0.0.0")
    monkeypatch.setenv("TRIPTYCH_GRPC_PORT", "9000")
    monkeypatch.setenv("TRIPTYCH_METRICS_PORT", "9001")
    settings = TritonSettings()
    assert (settings.host, settings.grpc_port, settings.metrics_port) == ("127.0.0.1", 8001, 8002)
    for front in (GatewaySettings(), ServeSettings()):
        assert (front.host, front.grpc_port) == ("0.0.0.0", 9000)


@pytest.mark.parametrize("settings", [TritonSettings, GatewaySettings, ServeSettings])
def test_collector_is_that_of_our_variable_then_that_of_opentelemetry(
    settings: type[CommandSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings().otlp_endpoint is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://theirs:4318")
    assert str(settings().otlp_endpoint) == "http://theirs:4318/"
    monkeypatch.setenv("TRIPTYCH_OTLP_ENDPOINT", "http://ours:4318")
    assert str(settings().otlp_endpoint) == "http://ours:4318/"


def test_program_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TritonSettings().program is None
    monkeypatch.setenv("TRITONSERVER", "/opt/tritonserver")
    assert TritonSettings().program == Path("/opt/tritonserver")
    assert TritonSettings(program=Path("/other")).program == Path("/other")
    monkeypatch.setenv("TRITONSERVER", "")
    assert TritonSettings().program is None


def test_empty_variable_of_triton_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEVICE", "MAX_ROWS", "WATCH", "STATE", "OTLP_ENDPOINT"):
        monkeypatch.setenv(f"TRIPTYCH_{name}", "")
    assert TritonSettings() == TritonSettings(device=None, max_rows=None, watch=False, state=None)


def test_arguments_read_back_are_the_same_settings() -> None:
    settings = ServeSettings(
        repository=Path("a b"),
        device="cuda:2",
        watch=True,
        state_memory="2KiB",
        max_rows=3,
        self_check=False,
    )
    names = set(ModelSettings.model_fields)
    arguments = settings.arguments(names)
    assert {"--watch", "--no-self-check"} < set(arguments)
    assert not any(word.startswith("--prefix-memory") for word in arguments), "it is unset"
    texts = dict(word[2:].split("=", 1) for word in arguments if "=" in word)
    read = ModelSettings(
        watch=True, self_check=False, **{name.replace("-", "_"): t for name, t in texts.items()}
    )
    assert read.model_dump(include=names) == settings.model_dump(include=names)


def test_every_setting_but_the_program_is_described_for_the_command_line() -> None:
    for settings in (GatewaySettings, TritonSettings, ServeSettings):
        fields = settings.model_fields.items()
        assert {name for name, field in fields if not field.description} <= {"program"}
