"""Compose and Kubernetes run the same commands, and what the images and lock files install."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from serving.settings.gateway_settings import GatewaySettings
from tests.docker.swarm_cluster import FILE

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


PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
HALVES = {
    "triton-cpu": (
        "serving.triton.supervisor", "serving.triton.bundle_loader", "serving.load_model",
        "serving.probe", "serving.backends.autoregressive.request_queue",
        "inference.engine.runner_factory", "inference.stateless.graph_sessions",
        "triptych.cli",
    ),
    "gateway": (
        "serving.gateway.server.run_server", "serving.gateway.server.app", "serving.load_model",
        "triptych.cli",
    ),
    "gateway,otlp": ("serving.gateway.observability.otlp",),
    "gateway,redis": ("serving.gateway.admission.redis_counts",),
    "batch": (
        "serving.batch.command", "inference.engine.runner_factory",
        "inference.stateless.graph_sessions", "triptych.cli",
    ),
    "object-storage": (
        "serving.object_storage.transfer", "serving.commands.object_storage", "triptych.cli",
    ),
    "triton-cpu,openvino-runtime": ("inference.stateless.compiled_graphs",),
}  # fmt: skip
"""Extras of an image → what its processes import."""
START = """
import importlib, json, sys
refused, modules = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(refused))  # None: not there, for `find_spec` too
for module in modules:
    importlib.import_module(module)
"""


def installed_by(*given: str) -> set[str]:
    """Distributions that requirements install, with all that these need."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in given]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name == "triptych":
            further = [text for each in requirement.extras for text in EXTRAS[each]]
            waiting += [(Requirement(text), "") for text in further]
            continue
        found.add(name)
        for each in ("", *requirement.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                try:
                    needs = requires(name) or []
                except PackageNotFoundError:
                    continue  # of another platform
                waiting += [(Requirement(text), each) for text in needs]
    return found


@pytest.mark.parametrize("extras", HALVES)
def test_half_starts_with_the_packages_of_its_extras(extras: str) -> None:
    own = installed_by(*PROJECT["dependencies"], f"triptych[{extras}]")
    refused = [
        package
        for package, distributions in packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & {*own, "triptych", "pip"}
        and package not in ("export", "setuptools", "_distutils_hack")
    ]
    assert "torch" in refused
    argument = json.dumps([refused, HALVES[extras]])
    command = [sys.executable, "-c", START, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]


def test_images_install_these_extras() -> None:
    folder = Path(__file__).parents[2] / "docker"
    text = (folder / "Dockerfile").read_text()
    assert "ARG TRITON_EXTRAS=triton-cpu,openvino-runtime" in text
    assert 'requirements/$(echo "${TRITON_EXTRAS}" | tr , +).txt' in text
    assert "-r requirements/gateway+otlp+redis.txt" in text
    assert "-r requirements/object-storage.txt" in text
    assert not re.search(
        r"pip\b[^&]*? install (?!\\\n\s+--require-hashes|--require-hashes|--no-deps)", text
    )
    assert "${TRITON_EXTRAS:-triton-cpu,openvino-runtime}" in (folder / "compose.yaml").read_text()


def test_release_lists_what_each_image_installs() -> None:
    root = Path(__file__).parents[2]
    script = (root / ".ci" / "release").read_text()
    dockerfile = (root / "docker" / "Dockerfile").read_text()
    compose = (root / "docker" / "compose.gpu.yaml").read_text()
    locks = {"triton-gpu": re.search(r"TRITON_GPU_EXTRAS:-(\S+)\}", compose)[1].replace(",", "+")}
    for stage in dockerfile.split("\nFROM ")[1:]:
        if found := re.match(r"installer AS (\w+)-packages\n", stage):
            extras = re.search(r"ARG TRITON_EXTRAS=(\S+)", stage)
            lock = re.search(r"-r requirements/(\S+)\.txt", stage)
            locks[found[1]] = extras[1].replace(",", "+") if extras else lock[1]
    assert set(locks) == {"gateway", "triton", "triton-gpu", "storage"}
    assert dict(re.findall(r"^  ([\w-]+)=([\w+-]+)$", script, re.MULTILINE)) == locks


ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCKS = re.search(r"^LOCKS := (.*)$", MAKEFILE, re.MULTILINE)[1].split()
ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>[^\n]*\\\n(?:[^\n]+\n?)*?)(?=^\S|\Z)", re.M
)
WITHOUT_HASH = {"torch"}
SERVING = [lock for lock in LOCKS if not lock.startswith("dev")]
"""What images and workers install, and what builds the wheel of this project."""
each_lock = pytest.mark.parametrize("lock", LOCKS)


def entries(lock: str) -> dict[str, tuple[Version, str]]:
    """Package → its version, and the lines with its hashes."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    found = {
        canonicalize_name(match["name"]): (Version(match["version"]), match["rest"])
        for match in ENTRY.finditer(text)
    }
    assert len(found) == len(re.findall(r"^\w", text, re.MULTILINE)), "an entry is not understood"
    return found


@each_lock
def test_every_entry_has_hashes_and_no_address(lock: str) -> None:
    for name, (_, lines) in entries(lock).items():
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}\b", lines), name
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert " @ " not in text
    assert "-index" not in text


@each_lock
def test_every_requirement_is_locked_within_its_range(lock: str) -> None:
    locked = entries(lock)
    waiting = [*PROJECT["dependencies"], *(text for e in lock.split("+") for text in EXTRAS[e])]
    seen: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name == "triptych":
            waiting += [text for e in requirement.extras - seen for text in EXTRAS[e]]
            seen |= requirement.extras
        elif name not in WITHOUT_HASH:
            version, _ = locked[name]
            assert requirement.specifier.contains(version), f"{requirement} but {version}"


def test_what_is_installed_needs_nothing_that_is_not_locked() -> None:
    needed = installed_by(*PROJECT["dependencies"], "triptych[dev]")
    of_torch = {name for name in needed if name.startswith(("nvidia-c", "nvidia-n", "triton"))}
    assert needed - of_torch - WITHOUT_HASH - set(entries("dev")) == set()


def test_locks_agree() -> None:
    versions: dict[str, set[Version]] = {}
    for lock in LOCKS:
        for name, (version, _) in entries(lock).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_version_of_torch_is_the_same_everywhere() -> None:
    (declared,) = {Requirement(text).specifier for text in EXTRAS["export"] if "torch" in text}
    made = re.search(r"^TORCH := (.*)$", MAKEFILE, re.MULTILINE)
    assert str(declared) == f"=={made[1]}"


@each_lock
def test_arm64_has_the_packages_of_x86_64(lock: str) -> None:
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    installed = []
    for machine in ("x86_64", "aarch64"):
        environment = {**default_environment(), **linux, "platform_machine": machine}
        lines = {name: rest.partition("\\")[0] for name, (_, rest) in entries(lock).items()}
        asked = [Requirement(f"{name} {rest}") for name, rest in lines.items()]
        installed.append({e.name for e in asked if not e.marker or e.marker.evaluate(environment)})
    assert installed[0] == installed[1]


@pytest.mark.full
@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize("lock", SERVING)
def test_arm64_has_wheels_with_the_locked_hashes(lock: str, python: str, tmp_path: Path) -> None:
    """For the images' glibc; needs the package index that uv is configured with."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--dry-run"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version"]
    command += [python, "--python-platform", "aarch64-manylinux_2_36", "--target", str(tmp_path)]
    command += ["--requirements", str(ROOT / "requirements" / f"{lock}.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if any(reason in done.stderr for reason in ("Failed to fetch", "error sending request")):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
