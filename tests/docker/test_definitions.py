"""Compose, Kubernetes and the stack file run the same commands, on a GPU too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings.gateway_settings import GatewaySettings
from tests.docker.swarm.cluster import FILE

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
RESOURCES = [
    yaml.safe_load(path.read_text())
    for path in sorted((DOCKER / "kubernetes" / "base").glob("*/*.yaml"))
    if path.name != "kustomization.yaml"
]
SERVICES = ("triton", "gateway")
PROBE = ["python3", "-m", "serving.probe"]


def resource(kind: str, name: str) -> dict[str, Any]:
    [found] = [r for r in RESOURCES if (r["kind"], r["metadata"]["name"]) == (kind, name)]
    return found


def workload(name: str) -> dict[str, Any]:
    return resource("StatefulSet" if name == "triton" else "Deployment", name)["spec"]


def pod(name: str) -> dict[str, Any]:
    return workload(name)["template"]["spec"]


def container(name: str) -> dict[str, Any]:
    [only] = pod(name)["containers"]
    return only


@pytest.mark.parametrize("name", SERVICES)
def test_both_run_the_same_command(name: str) -> None:
    assert container(name)["args"] == shlex.split(COMPOSE[name]["command"])
    assert container(name)["image"] == COMPOSE[name]["image"]


@pytest.mark.parametrize("name", SERVICES)
def test_health_is_liveness_in_both(name: str) -> None:
    probe, test = container(name)["livenessProbe"], COMPOSE[name]["healthcheck"]["test"]
    if name == "triton":
        assert test == ["CMD", *probe["exec"]["command"]] == ["CMD", *PROBE, "--live"]
    else:
        assert "urllib" not in test[-1], "it takes the proxies of a container's environment"
        [url] = re.findall(r"'127.0.0.1:\d+', 'GET', '(/\S+)'", test[-1])
        assert url == probe["httpGet"]["path"] == "/health"
    assert COMPOSE[name]["healthcheck"]["retries"] == probe["failureThreshold"]


def test_liveness_leaves_the_supervisor_its_time() -> None:
    probe = container("triton")["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 2 * 30, "it restarts after 30 s"


def test_readiness_is_the_gateways_own_and_tritons_with_a_model() -> None:
    assert container("gateway")["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container("triton")["readinessProbe"]["exec"]["command"] == PROBE


def test_tritons_http_has_no_port() -> None:
    assert {port["containerPort"] for port in container("triton")["ports"]} == {8001, 8002}
    assert "EXPOSE 8001 8002\n" in (DOCKER / "Dockerfile").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_privileges_are_the_same(name: str) -> None:
    compose, kubernetes = COMPOSE[name], container(name)["securityContext"]
    assert compose["read_only"]
    assert kubernetes["readOnlyRootFilesystem"]
    assert compose["cap_drop"] == kubernetes["capabilities"]["drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert kubernetes["allowPrivilegeEscalation"] is False
    user = pod(name)["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (DOCKER / "Dockerfile").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_stop_times_are_the_same_after_what_precedes_sigterm(name: str) -> None:
    grace_s = pod(name)["terminationGracePeriodSeconds"]
    before_s = int(container(name)["lifecycle"]["preStop"]["exec"]["command"][-1])
    compose_s = int(COMPOSE[name]["stop_grace_period"].removesuffix("s"))
    assert compose_s <= grace_s - before_s <= compose_s + 10


@pytest.mark.parametrize("name", SERVICES)
def test_missing_repository_is_an_error_and_it_is_read_only(name: str) -> None:
    [mount] = [volume for volume in COMPOSE[name]["volumes"] if isinstance(volume, dict)]
    assert mount["target"] == "/models"
    assert mount["bind"]["create_host_path"] is False
    assert mount["read_only"]
    [volume] = [m for m in container(name)["volumeMounts"] if m["name"] == "models"]
    assert volume == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_record_of_served_versions_outlives_the_container() -> None:
    arguments = container("triton")["args"]
    state = Path(arguments[arguments.index("--state") + 1])
    assert f"state:{state.parent}" in COMPOSE["triton"]["volumes"]
    assert "state" in yaml.safe_load((DOCKER / "compose.yaml").read_text())["volumes"]
    [mount] = [m for m in container("triton")["volumeMounts"] if m["name"] == "state"]
    assert mount == {"name": "state", "mountPath": str(state.parent)}
    [claim] = workload("triton")["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "state"
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert f"COPY --chown=10001:10001 --from=triton-packages {state.parent}" in dockerfile


def test_glossaries_outlive_the_container() -> None:
    folder = COMPOSE["gateway"]["environment"]["TRIPTYCH_GLOSSARIES"]
    assert f"glossaries:{folder}" in COMPOSE["gateway"]["volumes"]
    assert "glossaries" in yaml.safe_load((DOCKER / "compose.yaml").read_text())["volumes"]
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert f"COPY --chown=10001:10001 --from=gateway-packages {folder}" in dockerfile


def test_only_the_gateway_is_published_and_on_loopback() -> None:
    assert "ports" not in COMPOSE["triton"]
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["gateway"]["ports"])


def test_tritons_ports_admit_the_gateway_alone() -> None:
    policy = resource("NetworkPolicy", "triton")["spec"]
    [rule] = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
    assert {port["port"] for port in rule["ports"]} == {8001, 8002}
    assert policy["egress"] == []


def test_services_and_selectors_fit_together() -> None:
    for name in SERVICES:
        labels = workload(name)["template"]["metadata"]["labels"]
        assert resource("Service", name)["spec"]["selector"] == labels == {"app": name}


def test_every_image_of_a_registry_is_named_by_its_digest() -> None:
    files = [DOCKER / "Dockerfile", DOCKER / "up.sh", *sorted(DOCKER.glob("*.yaml"))]
    text = "\n".join(path.read_text() for path in files)
    images = re.findall(r"(?m)(?:^ARG BASE=|_BASE:-|image: (?:\$\{\w+:-)?)([^\s}$]+)", text)
    others = {image for image in images if not image.startswith("triptych-")}
    assert {re.split("[:@]", image)[0].rpartition("/")[2] for image in others} == {
        *("python", "tritonserver", "nginx-unprivileged", "prometheus", "grafana")
    }
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in others)
    assert len(others) == 5, "two digests of one image"


BASE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OVERRIDE = yaml.safe_load((DOCKER / "compose.gpu.yaml").read_text())
TRITON = OVERRIDE["services"]["triton"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def test_override_is_triton_alone() -> None:
    """Without the file the containers are the CPU's, and the gateway always is."""
    assert set(OVERRIDE["services"]) == {"triton"}
    assert "gpu" not in (DOCKER / "compose.yaml").read_text().lower()
    protection = {"read_only", "cap_drop", "security_opt", "networks", "healthcheck", "ports"}
    assert not protection & set(TRITON)


def test_gpu_is_reserved_and_the_image_is_another() -> None:
    [device] = TRITON["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert TRITON["image"] != BASE["services"]["triton"]["image"]


def test_nvidias_container_has_a_fixed_tag_that_a_variable_changes() -> None:
    arguments = TRITON["build"]["args"]
    assert re.fullmatch(
        r"\$\{TRITON_BASE:-nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-py3@sha256:[0-9a-f]{64}\}",
        arguments["BASE"],
    )
    for name in arguments:
        assert f"ARG {name}" in DOCKERFILE


def test_plans_are_on_a_volume_that_triton_may_write() -> None:
    command = shlex.split(TRITON["command"])
    folder = command[command.index("--plans") + 1]
    assert f"plans:{folder}" in TRITON["volumes"]
    assert "plans" in OVERRIDE["volumes"]
    assert f"COPY --chown=10001:10001 --from=triton-packages {folder} {folder}" in DOCKERFILE
    assert TRITON["environment"]["CUDA_CACHE_PATH"].startswith(f"{folder}/")


def test_command_is_the_cpus_with_plans() -> None:
    ours = shlex.split(TRITON["command"])
    at = ours.index("--plans")
    assert ours[:at] + ours[at + 2 :] == shlex.split(BASE["services"]["triton"]["command"])


@pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="docker-compose merges the files"
)
def test_files_merge(tmp_path: Path) -> None:
    """Version 1.29 validates them against the same schema, but for `create_host_path`."""
    names = ("compose.yaml", "compose.gpu.yaml")
    for name in names:
        lines = (DOCKER / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(x for x in lines if "create_host_path" not in x))
    files = [argument for name in names for argument in ("-f", str(tmp_path / name))]
    done = subprocess.run(
        ["docker-compose", "-p", "docker", *files, "config"],
        capture_output=True,
        text=True,
        check=True,
    )
    merged: dict[str, Any] = yaml.safe_load(done.stdout)["services"]["triton"]
    assert merged["read_only"] is True
    targets = {each if isinstance(each, str) else each["target"] for each in merged["volumes"]}
    assert targets == {"plans:/plans:rw", "state:/state:rw", "/models"}
    assert merged["deploy"]["resources"]["reservations"]["devices"]
    assert merged["build"]["args"]["TRITON_EXTRAS"] == "triton-gpu"


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
