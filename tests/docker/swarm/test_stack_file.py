"""The stack file has the containers of compose.yaml, and nothing that `docker stack` ignores."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from serving.settings.gateway_settings import GatewaySettings
from tests.docker.swarm.cluster import FILE
from tests.docker.test_definitions import COMPOSE, PROBE, SERVICES

STACK_FILE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
STACK: dict[str, dict[str, Any]] = STACK_FILE["services"]
IGNORED = {"build", "tmpfs", "shm_size", "security_opt", "restart", "depends_on"}
"""By `docker stack deploy`, silently or with a line."""


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Target → mount; short forms are read as `docker` does."""
    found = {}
    for each in service["volumes"]:
        if isinstance(each, str):
            source, target = each.split(":")
            each = {"type": "volume", "source": source, "target": target}
        found[each["target"]] = each
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_those_of_compose(name: str) -> None:
    stack, compose = STACK[name], COMPOSE[name]
    assert shlex.split(stack["command"]) == shlex.split(compose["command"])
    assert stack["image"].endswith(f"_IMAGE:-{compose['image']}}}")
    for key in ("init", "read_only", "cap_drop", "networks", "stop_grace_period"):
        assert stack[key] == compose[key], key
    assert set(stack["environment"] if name == "gateway" else ()) <= {
        f"TRIPTYCH_{field.upper()}" for field in GatewaySettings.model_fields
    }


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_there_that_a_stack_ignores(name: str) -> None:
    assert not IGNORED & set(STACK[name])
    assert not any("bind" in each for each in mounts(STACK[name]).values())


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_writable_is_the_same(name: str) -> None:
    stack, compose = mounts(STACK[name]), mounts(COMPOSE[name])
    [(target, options)] = [each.split(":") for each in COMPOSE[name]["tmpfs"]]
    expected = compose.keys() | {target} | ({"/dev/shm"} if name == "triton" else set())
    assert stack.keys() == expected
    assert stack["/models"]["read_only"]
    temporary = stack[target]["type"]
    assert temporary == ("volume" if "exec" in options else "tmpfs"), "a stack's tmpfs is noexec"
    if name == "triton":
        assert COMPOSE[name]["shm_size"] == "1g"
        assert stack["/dev/shm"]["tmpfs"]["size"] == 1 << 30


@pytest.mark.parametrize("name", SERVICES)
def test_health_is_readiness_first_and_then_liveness(name: str) -> None:
    kind, script = STACK[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert script.startswith("[ -e /tmp/was-ready ] &&")
    assert script.endswith("&& touch /tmp/was-ready")
    compose = COMPOSE[name]["healthcheck"]["test"]
    if name == "triton":
        assert f"exec {shlex.join(compose[1:])};" in script
        assert f"{shlex.join(PROBE)} && touch" in script
    else:
        live = compose[-1].replace("/health", "/$$path")
        assert live in script
        assert "path=health || path=ready" in script
    times = STACK[name]["healthcheck"]
    period_s = int(times["interval"].removesuffix("s")) * times["retries"]
    theirs = COMPOSE[name]["healthcheck"]
    assert period_s == int(theirs["interval"].removesuffix("s")) * theirs["retries"]


def test_a_name_has_the_addresses_of_all_tritons() -> None:
    assert STACK["triton"]["deploy"]["endpoint_mode"] == "dnsrr"


@pytest.mark.parametrize("name", SERVICES)
def test_updates_replace_one_after_the_other_and_go_back(name: str) -> None:
    update = STACK[name]["deploy"]["update_config"]
    assert (update["parallelism"], update["failure_action"]) == (1, "rollback")
    order = STACK[name]["deploy"]["rollback_config"]["order"]
    assert update["order"] == order == ("stop-first" if name == "triton" else "start-first")


def test_states_of_tritons_are_apart_and_tritons_are_not_published() -> None:
    assert "{{.Task.Slot}}" in STACK_FILE["volumes"]["state"]["name"]
    assert "ports" not in STACK["triton"]
    assert STACK_FILE["networks"]["models"] == {"internal": True}


def test_a_published_gateway_requires_a_key() -> None:
    gateway = STACK["gateway"]
    [secret] = gateway["secrets"]
    assert gateway["environment"]["TRIPTYCH_API_KEYS"] == f"/run/secrets/{secret['target']}"
    assert "${API_KEYS:?" in STACK_FILE["secrets"]["api-keys"]["file"]
    assert re.fullmatch(r"10001", secret["uid"])
