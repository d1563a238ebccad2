import pytest
from pydantic import ValidationError

from serving.settings.gateway_settings import GatewaySettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GatewaySettings.model_fields:
        monkeypatch.delenv(f"TRIPTYCH_{name.upper()}", raising=False)


def test_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_MAX_INPUT_TOKENS", "77")
    monkeypatch.setenv("TRIPTYCH_CORS_ALLOW_ORIGIN", "https://a.example,https://b.example")
    monkeypatch.setenv("TRIPTYCH_JSON_OUTPUT", "true")
    settings = GatewaySettings()
    assert settings.max_input_tokens == settings.task_limits.max_input_tokens == 77
    assert settings.cors_allow_origin == ("https://a.example", "https://b.example")
    assert settings.json_output
    assert settings.task_limits.max_best_of == settings.max_best_of
    assert settings.task_limits.max_stop_sequences == settings.max_stop_sequences
    assert GatewaySettings(max_input_tokens=5).max_input_tokens == 5


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
