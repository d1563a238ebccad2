"""Settings of commands, gateways and engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from inference.engine.scheduler import Capacity
from inference.errors import SetupError
from serving.settings.command_settings import CommandSettings
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.triton_settings import (
    CapacitySettings,
    ModelSettings,
    ServeSettings,
    TritonSettings,
)


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert str(settings(otlp_endpoint="http://b:1").otlp_endpoint) == "http://b:1/"
    monkeypatch.delenv("TRIPTYCH_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    assert settings().otlp_endpoint is None


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


def test_flags_are_text() -> None:
    settings = GatewaySettings(http_port="0", request_timeout="2.5", max_image_pixels="100")
    assert (settings.http_port, settings.request_timeout) == (0, 2.5)
    assert settings.task_limits.image.max_pixels == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"http_port": 70_000},
        {"max_concurrent_requests": 0},
        {"request_timeout": "nan"},
        {"payload_limit": -1},
        {"max_best_of": 17},
        {"max_stop_sequences": 0},
        {"max_image_pixels": 10**9},
        {"api_key": ""},
        {"triton": "10.0.0.1"},
        {"triton": "a:1,b:2,a:1"},
        {"triton": ""},
        {"triton": "a:1,b:2", "triton_metrics": "a:3"},
        {"otlp_endpoint": "collector:4318"},
        {"unknown": 1},
    ],
)
def test_values_that_cannot_be_honoured_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(**wrong)


def test_servers_are_addresses_with_one_for_metrics_each() -> None:
    settings = GatewaySettings(triton="triton:8001, [::1]:1", triton_metrics="triton:8002,[::1]:2")
    assert settings.triton == ("triton:8001", "[::1]:1")
    assert settings.triton_metrics == ("triton:8002", "[::1]:2")
    assert GatewaySettings().triton == ("127.0.0.1:8001",)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        GatewaySettings().host = "0.0.0.0"


def test_a_store_of_limits_is_redis_and_an_empty_variable_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIPTYCH_LIMITS_STORE", "")
    assert GatewaySettings().limits_store is None
    monkeypatch.setenv("TRIPTYCH_LIMITS_STORE", "rediss://:secret@cache:6379/1")
    store = GatewaySettings().limits_store
    assert store.get_secret_value() == "rediss://:secret@cache:6379/1"
    assert "secret" not in repr(GatewaySettings())
    with pytest.raises(ValidationError, match="redis://HOST:PORT"):
        GatewaySettings(limits_store="http://cache:6379")


def test_an_omitted_setting_is_the_engines_default() -> None:
    assert CapacitySettings().capacity() == Capacity()
    assert CapacitySettings().parameters() == {}


def test_every_setting_reaches_the_engine() -> None:
    flags = {
        "max_rows": "4",
        "max_waiting": "9",
        "max_prefill_tokens": "700",
        "max_prefill_tokens_beside": "70",
        "state_memory": "1.5GiB",
        "prefix_memory": "0",
        "draft_tokens": "0",
    }
    assert set(flags) == set(CapacitySettings.model_fields)
    assert CapacitySettings.of(flags).capacity() == Capacity(
        rows=4,
        waiting=9,
        prefill_tokens=700,
        prefill_tokens_beside=70,
        chunk_tokens=70,
        state_bytes=3 << 29,
        prefix_bytes=0,
        draft_tokens=0,
    )


def test_text_for_a_configuration_has_the_same_settings() -> None:
    settings = CapacitySettings.of({"max_rows": "4", "state_memory": "2GiB"})
    assert settings.parameters() == {"max_rows": "4", "state_memory": str(2 << 30)}
    assert CapacitySettings.of(settings.parameters()) == settings


def test_unknown_parameters_are_ignored() -> None:
    assert CapacitySettings.of({"incarnation": "3", "max_rows": "5"}).max_rows == 5


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"max_prefill_tokens": 8}, (8, 8, 8)),
        ({"max_prefill_tokens_beside": 5000}, (5000, 5000, 128)),
        ({"max_prefill_tokens_beside": 1}, (2048, 1, 1)),
    ],
)
def test_one_bound_on_tokens_moves_the_others_as_far_as_needed(
    flags: dict[str, object], found: tuple[int, int, int]
) -> None:
    capacity = CapacitySettings.of(flags).capacity()
    tokens = (capacity.prefill_tokens, capacity.prefill_tokens_beside, capacity.chunk_tokens)
    assert tokens == found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_rows": "0"}, "max_rows is '0'.*greater than or equal to 1"),
        ({"max_waiting": "many"}, "max_waiting is 'many'.*integer"),
        ({"state_memory": "2 apples"}, "state_memory is '2 apples'.*apples"),
        ({"state_memory": "0"}, "state_memory is '0'"),
        ({"prefix_memory": "-1"}, "prefix_memory is '-1'"),
        (
            {"max_prefill_tokens": "5", "max_prefill_tokens_beside": "9"},
            r"^max_prefill_tokens_beside \(9\) must not exceed max_prefill_tokens \(5\)$",
        ),
    ],
)
def test_bad_values_are_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CapacitySettings.of(flags)
