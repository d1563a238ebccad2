"""Objects of Kubernetes, and what every set of them must hold."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate
import yaml

from serving.commands.object_storage import pull
from serving.gateway.http.router import Route
from serving.settings.command_settings import PREFIX, CommandSettings
from serving.settings.gateway_settings import GatewaySettings
from serving.settings.triton_settings import TritonSettings
from tests.docker.test_monitoring import emitted
from tests.programs import run_program
from triptych.commands.lazy_commands import single

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
VARIANTS = ("cpu", "gpu", "several-models")
WORKLOADS = ("Deployment", "StatefulSet")

Object: TypeAlias = dict[str, Any]


def key(found: Object) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def read(text: str) -> list[Object]:
    return [found for found in yaml.safe_load_all(text) if found]


def rendered(variant: str) -> list[Object]:
    """What the chart renders from, as it is committed: object storage and autoscaling included."""
    return read((FOLDER / "chart" / "rendered" / f"{variant}.yaml").read_text())


@cache
def kustomized(folder: str) -> str:
    """What Kustomize builds of a folder."""
    return run_program("kubectl", "kustomize", FOLDER / folder)


def charted(values: Mapping[str, Any]) -> list[Object]:
    """What Helm renders of the chart."""
    from helm_python import Chart

    files = Chart.load(str(FOLDER / "chart")).render(dict(values), name="triptych", namespace="a")
    return [found for name, text in files.items() if name.endswith(".yaml") for found in read(text)]


def of_kind(objects: Sequence[Object], *kinds: str) -> Iterator[Object]:
    return (found for found in objects if found["kind"] in kinds)


def pod(workload: Object) -> Object:
    return workload["spec"]["template"]["spec"]


def pod_labels(workload: Object) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def containers(workload: Object) -> list[Object]:
    return [*pod(workload)["containers"], *pod(workload).get("initContainers", ())]


def flags(container: Object) -> dict[str, str]:
    """`--flag value` of a container's arguments."""
    words = container["args"][1:]
    joined = [word.split("=", 1) for word in words if "=" in word]
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {
        **{name: value for name, value in pairs if name.startswith("--") and "=" not in name},
        **dict(joined),
    }


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
    exact: Mapping[str, str] = selector.get("matchLabels", {})
    some = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in some), "other operators are not used"
    return exact.items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in some
    )


Labels = Mapping[str, str]
OUTSIDE: Labels = {"app": "something-else"}
"""Labels of a pod that is not ours."""


def is_reachable(
    objects: Sequence[Object],
    source: Labels,
    target: Labels,
    port: int,
    namespace: Labels | None = None,
) -> bool:
    """Whether the policies let a pod open a connection to a port of another.

    Args:
        namespace: Labels of the source's namespace; None: it is the target's.
    """
    policies = list(of_kind(objects, "NetworkPolicy"))
    leaves = namespace is not None or _allows(policies, "Egress", source, target, port, None)
    return leaves and _allows(policies, "Ingress", target, source, port, namespace)


def reaches_outside(objects: Sequence[Object], source: Labels, port: int) -> bool:
    """Whether a pod may open a connection to an address that is no pod."""
    policies = [p for p in of_kind(objects, "NetworkPolicy") if _is_about(p, "Egress", source)]
    rules = [rule for policy in policies for rule in policy["spec"].get("egress", ())]
    return not policies or any(not rule.get("to") and _has(rule, port) for rule in rules)


def _allows(
    policies: Sequence[Object],
    direction: str,
    own: Labels,
    other: Labels,
    port: int,
    namespace: Labels | None,
) -> bool:
    chosen = [policy for policy in policies if _is_about(policy, direction, own)]
    side = "to" if direction == "Egress" else "from"
    rules = [rule for policy in chosen for rule in policy["spec"].get(direction.lower(), ())]
    return not chosen or any(
        _has(rule, port)
        and (not rule.get(side) or any(_is_peer(p, other, namespace) for p in rule[side]))
        for rule in rules
    )


def _is_about(policy: Object, direction: str, own: Labels) -> bool:
    spec = policy["spec"]
    return direction in spec["policyTypes"] and selects(spec["podSelector"], own)


def _has(rule: Mapping[str, Any], port: int) -> bool:
    return not rule.get("ports") or any(each["port"] == port for each in rule["ports"])


def _is_peer(peer: Mapping[str, Any], labels: Labels, namespace: Labels | None) -> bool:
    if "podSelector" in peer and not selects(peer["podSelector"], labels):
        return False
    if "namespaceSelector" in peer:
        return namespace is not None and selects(peer["namespaceSelector"], namespace)
    return namespace is None


Claim = Callable[[Sequence[Object]], Iterator[str]]
DOCKER = Path(__file__).parents[2] / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
VERSIONS = ("1.27", "1.37")
"""Of Kubernetes: the chart's oldest, and the newest known."""
CUSTOM = {"ScaledObject", "ServiceMonitor", "ServingRuntime", "InferenceService"}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
COMMANDS: dict[str, type[CommandSettings]] = {"gateway": GatewaySettings, "triton": TritonSettings}
FOREIGN = {"AWS_REGION", "CUDA_CACHE_PATH"}
DRAIN_S = 30
_METRIC = re.compile(r"\btriptych_[a-z_]+\b")


def fit_their_schemas(objects: Sequence[Object]) -> Iterator[str]:
    for found in objects:
        for version in VERSIONS if found["kind"] not in CUSTOM else ():
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except (
                kubernetes_validate.ValidationError,
                kubernetes_validate.SchemaNotFoundError,
            ) as error:
                yield f"{found['kind']} {found['metadata']['name']}: {error}"


def have_no_privileges(objects: Sequence[Object]) -> Iterator[str]:
    [user] = set(re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE))
    for workload in of_kind(objects, *WORKLOADS):
        spec, name = pod(workload), workload["metadata"]["name"]
        own = spec.get("securityContext", {})
        if not (own.get("runAsNonRoot") and own.get("runAsUser") == int(user)):
            yield f"{name} may run as root"
        if own.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name} has no seccomp profile"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name} has a token of the cluster"
        if any(spec.get(each) for each in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} is in a namespace of the node"
        if any("hostPath" in volume for volume in spec["volumes"]):
            yield f"{name} mounts the node"
        for container in containers(workload):
            context = container.get("securityContext", {})
            if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
                yield f"{container['name']} may gain privileges"
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{container['name']} has capabilities"
            if not context.get("readOnlyRootFilesystem"):
                yield f"{container['name']} may write its root"


def probe_what_exists(routes: Sequence[Route], open_paths: frozenset[str]) -> Claim:
    """Claim that HTTP probes go to routes that need no key, and commands are modules of ours."""
    paths = {route.path for route in routes if "GET" in route.methods} & open_paths

    def claim(objects: Sequence[Object]) -> Iterator[str]:
        for workload in of_kind(objects, *WORKLOADS):
            for container in pod(workload)["containers"]:
                names = {port["name"] for port in container["ports"]}
                for each in PROBES:
                    probe = container.get(each)
                    if probe is None:
                        yield f"{container['name']} has no {each}"
                    elif "httpGet" in probe:
                        if probe["httpGet"]["path"] not in paths:
                            yield f"{each}: no open route {probe['httpGet']['path']}"
                        if probe["httpGet"]["port"] not in names:
                            yield f"{each}: no port {probe['httpGet']['port']}"
                    else:
                        python, option, module, *rest = probe["exec"]["command"]
                        if (python, option) != ("python3", "-m") or importlib.util.find_spec(
                            module
                        ) is None:
                            yield f"{each}: no module {module}"
                        if rest != ([] if each == "readinessProbe" else ["--live"]):
                            yield f"{each}: {rest}"

    return claim


def are_reachable_by_gateways_alone(objects: Sequence[Object]) -> Iterator[str]:
    workloads = list(of_kind(objects, *WORKLOADS))
    tritons = [each for each in workloads if each["kind"] == "StatefulSet"]
    gateways = [each for each in workloads if each["kind"] == "Deployment"]
    for triton in tritons:
        name, labels = triton["metadata"]["name"], pod_labels(triton)
        for port in (8001, 8002):
            for gateway in gateways:
                if not is_reachable(objects, pod_labels(gateway), labels, port):
                    yield f"gateways cannot reach {name}:{port}"
            for other in (OUTSIDE, *(pod_labels(each) for each in tritons)):
                if is_reachable(objects, other, labels, port):
                    yield f"pods with {dict(other)} reach {name}:{port}"
            if is_reachable(objects, OUTSIDE, labels, port, {"kubernetes.io/metadata.name": "x"}):
                yield f"another namespace reaches {name}:{port}"
    for gateway in gateways:
        if not is_reachable(objects, OUTSIDE, pod_labels(gateway), 8080):
            yield "clients cannot reach the gateway"


def select_pods(objects: Sequence[Object]) -> Iterator[str]:
    labels = [pod_labels(each) for each in of_kind(objects, *WORKLOADS)]
    for workload in of_kind(objects, *WORKLOADS):
        if not selects(workload["spec"]["selector"], pod_labels(workload)):
            yield f"{workload['metadata']['name']} does not select its pods"
    for found in of_kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = found["spec"]
        if found["kind"] == "Service":
            selectors = [{"matchLabels": spec["selector"]}]
        else:
            selectors = [spec.get("selector") or spec["podSelector"]]
        for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
            peers = (*rule.get("from", ()), *rule.get("to", ()))
            selectors += [p["podSelector"] for p in peers if "namespaceSelector" not in p]
        for selector in selectors:
            if not any(selects(selector, each) for each in labels):
                yield f"{found['kind']} {found['metadata']['name']}: {selector} selects no pod"


def expose_ports(objects: Sequence[Object]) -> Iterator[str]:
    workloads = list(of_kind(objects, *WORKLOADS))
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    for name, service in services.items():
        for workload in workloads:
            if service["spec"]["selector"].items() <= pod_labels(workload).items():
                ports = {
                    port["name"]: port["containerPort"]
                    for container in pod(workload)["containers"]
                    for port in container["ports"]
                }
                for port in service["spec"]["ports"]:
                    if ports.get(port["targetPort"]) != port["port"]:
                        yield f"service {name}: port {port['name']} is not {port['port']}"
    for workload in of_kind(objects, "StatefulSet"):
        service = services.get(workload["spec"]["serviceName"], {})
        if service.get("spec", {}).get("clusterIP") != "None":
            yield f"{workload['metadata']['name']} has no headless service"
    for workload in workloads:
        for container in pod(workload)["containers"]:
            given = flags(container)
            for flag in ("--triton", "--triton-metrics"):
                for address in filter(None, given.get(flag, "").split(",")):
                    host, _, port = address.partition(":")
                    known = services.get(host, {}).get("spec", {}).get("ports", ())
                    if int(port) not in {each["port"] for each in known}:
                        yield f"{flag} {address} is no service"


def have_settings_of_ours(objects: Sequence[Object]) -> Iterator[str]:
    options = {p.name: p for p in single("pull", pull).params}
    pulled = {str(option.envvar) for option in options.values() if option.envvar}
    pull_flags = {flag for option in options.values() for flag in option.opts}
    for workload in of_kind(objects, *WORKLOADS):
        for container in containers(workload):
            command, names = container["args"][0], set(flags(container))
            settings = COMMANDS.get(command)
            if settings is None:
                known_flags, known = pull_flags, pulled
            else:
                fields = settings.model_fields
                known_flags = {f"--{field.replace('_', '-')}" for field in fields}
                known = {f"{PREFIX}{field.upper()}" for field in fields}
            if names - known_flags:
                yield f"{command} has no {names - known_flags}"
            variables = {each["name"] for each in container.get("env", ())}
            if container.get("envFrom"):
                variables |= {
                    name for each in of_kind(objects, "ConfigMap") for name in each["data"]
                }
            if variables - known - FOREIGN:
                yield f"{command} reads no {variables - known - FOREIGN}"


def have_images_of_ours(objects: Sequence[Object]) -> Iterator[str]:
    composed = [yaml.safe_load(path.read_text()) for path in DOCKER.glob("compose*.yaml")]
    known = {f"triptych-{target}" for target in re.findall(r"AS (\w+)$", DOCKERFILE, re.MULTILINE)}
    for each in composed:
        named = (service.get("image", "") for service in each["services"].values())
        known |= {image.partition(":")[0] for image in named}
    for workload in of_kind(objects, *WORKLOADS):
        for container in containers(workload):
            if container["image"].rpartition("/")[2].partition(":")[0] not in known:
                yield f"no image {container['image']}"


def mount_what_exists(objects: Sequence[Object]) -> Iterator[str]:
    for workload in of_kind(objects, *WORKLOADS):
        claims = workload["spec"].get("volumeClaimTemplates", ())
        volumes = {each["name"] for each in pod(workload)["volumes"]}
        volumes |= {each["metadata"]["name"] for each in claims}
        for container in containers(workload):
            mounts = {each["name"]: each for each in container["volumeMounts"]}
            if mounts.keys() - volumes:
                yield f"{container['name']} mounts no {mounts.keys() - volumes}"
            writes = container["args"][0] == "pull"
            if bool(mounts["models"].get("readOnly")) == writes:
                yield f"{container['name']}: /models"
            for flag in ("--state", "--plans"):
                place = flags(container).get(flag)
                paths = {each["mountPath"] for each in mounts.values() if not each.get("readOnly")}
                if place and not {place, str(Path(place).parent)} & paths:
                    yield f"{container['name']}: {flag} {place} is not on a volume"
            if "memory" not in container.get("resources", {}).get("limits", {}):
                yield f"{container['name']} has no limit on its memory"


def drain(objects: Sequence[Object]) -> Iterator[str]:
    budgets = [each["spec"]["selector"] for each in of_kind(objects, "PodDisruptionBudget")]
    for workload in of_kind(objects, *WORKLOADS):
        name, spec = workload["metadata"]["name"], pod(workload)
        for container in spec["containers"]:
            command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {"command": []})
            before_s = int(command["command"][-1]) if command["command"] else 0
            if before_s < 5:
                yield f"{name} gets SIGTERM before others know"
            if spec["terminationGracePeriodSeconds"] < before_s + DRAIN_S + 5:
                yield f"{name} is killed while it drains"
        if not any(selects(each, pod_labels(workload)) for each in budgets):
            yield f"{name} has no disruption budget"
        if workload["spec"].get("replicas", 2) < 2:
            yield f"{name} has one replica, so an update interrupts it"


def scale_by_series_that_exist(objects: Sequence[Object]) -> Iterator[str]:
    targets = {
        (each["kind"], each["metadata"]["name"]): each for each in of_kind(objects, *WORKLOADS)
    }
    services = {each["metadata"]["name"]: each for each in of_kind(objects, "Service")}
    series = emitted()
    for found in of_kind(objects, "ScaledObject"):
        name, spec = found["metadata"]["name"], found["spec"]
        target = targets.get((spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]))
        if target is None or "replicas" in target["spec"]:
            yield f"{name} scales nothing, or what has a number of replicas"
        for trigger in spec["triggers"]:
            query = trigger["metadata"].get("query", "")
            names = set(_METRIC.findall(query))
            if (trigger["type"] == "prometheus" and not names) or names - series.keys():
                yield f"{name}: no series {names - series.keys()}"
            if set(re.findall(r'job="([^"]*)"', query)) - services.keys():
                yield f"{name}: no job in {query}"
            labels = set(re.findall(r"\b(?:by|on) \((\w+)\)", query))
            if any(labels - series[each] for each in names & series.keys()):
                yield f"{name}: no label {labels}"
    for found in of_kind(objects, "ServiceMonitor"):
        chosen = [
            service["spec"]
            for service in services.values()
            if selects(found["spec"]["selector"], service["metadata"]["labels"])
        ]
        for endpoint in found["spec"]["endpoints"]:
            if not any(endpoint["port"] in {p["name"] for p in spec["ports"]} for spec in chosen):
                yield f"{found['metadata']['name']} reads no port {endpoint['port']}"


CLAIMS: tuple[Claim, ...] = (
    fit_their_schemas,
    have_no_privileges,
    are_reachable_by_gateways_alone,
    select_pods,
    expose_ports,
    have_settings_of_ours,
    have_images_of_ours,
    mount_what_exists,
    drain,
    scale_by_series_that_exist,
)
