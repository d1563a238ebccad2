"""Faults to plant into sound objects, each with a part of what a claim yields of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.docker.manifests import WORKLOADS, Object, key, of_kind, pod


def container_of(objects: list[Object], name: str) -> Object:
    [found] = [
        container
        for workload in of_kind(objects, *WORKLOADS)
        for container in pod(workload)["containers"]
        if container["name"] == name
    ]
    return found


def named(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in objects if key(each) == (kind, name)]
    return found


def _gateway(objects: list[Object]) -> Object:
    return container_of(objects, "gateway")


def _triton(objects: list[Object]) -> Object:
    return container_of(objects, "triton")


def _policy(objects: list[Object]) -> Object:
    return named(objects, "NetworkPolicy", "triton")["spec"]


def _peer(objects: list[Object]) -> Object:
    return _policy(objects)["ingress"][0]["from"][0]


def _workload(objects: list[Object]) -> Object:
    return named(objects, "StatefulSet", "triton")["spec"]


FAULTS: dict[str, tuple[Callable[[list[Object]], object], str, str]] = {
    "a field that there is not": (
        lambda o: _workload(o).update(replica=2),
        "fit_their_schemas",
        "Additional properties",
    ),
    "a string for a number": (
        lambda o: _workload(o).update(minReadySeconds="2"),
        "fit_their_schemas",
        "not of type",
    ),
    "privileged": (
        lambda o: _triton(o)["securityContext"].update(privileged=True),
        "have_no_privileges",
        "gain privileges",
    ),
    "a capability": (
        lambda o: _triton(o)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
        "have_no_privileges",
        "has capabilities",
    ),
    "a writable root": (
        lambda o: _gateway(o)["securityContext"].update(readOnlyRootFilesystem=False),
        "have_no_privileges",
        "may write its root",
    ),
    "root": (
        lambda o: pod(named(o, "Deployment", "gateway"))["securityContext"].update(runAsUser=0),
        "have_no_privileges",
        "may run as root",
    ),
    "a folder of the node": (
        lambda o: pod(named(o, "StatefulSet", "triton"))["volumes"].append(
            {"name": "x", "hostPath": {"path": "/"}}
        ),
        "have_no_privileges",
        "mounts the node",
    ),
    "a probe of no route": (
        lambda o: _gateway(o)["readinessProbe"]["httpGet"].update(path="/readyz"),
        "probe_what_exists",
        "no open route /readyz",
    ),
    "a probe that needs a key": (
        lambda o: _gateway(o)["livenessProbe"]["httpGet"].update(path="/metrics"),
        "probe_what_exists",
        "no open route /metrics",
    ),
    "a probe of no module": (
        lambda o: _triton(o)["livenessProbe"]["exec"].update(
            command=["python3", "-m", "serving.probes", "--live"]
        ),
        "probe_what_exists",
        "no module serving.probes",
    ),
    "readiness as liveness": (
        lambda o: _triton(o)["livenessProbe"]["exec"]["command"].pop(),
        "probe_what_exists",
        "livenessProbe",
    ),
    "a policy of other gateways": (
        lambda o: _peer(o)["podSelector"]["matchLabels"].update(models="text"),
        "are_reachable_by_gateways_alone",
        "gateways cannot reach triton:8001",
    ),
    "a policy without sources": (
        lambda o: _policy(o)["ingress"][0].pop("from"),
        "are_reachable_by_gateways_alone",
        "pods with {'app': 'something-else'} reach triton:8001",
    ),
    "a policy of other pods": (
        lambda o: _policy(o)["podSelector"]["matchLabels"].update(app="tritons"),
        "select_pods",
        "selects no pod",
    ),
    "a gateway that may not leave": (
        lambda o: named(o, "NetworkPolicy", "gateway")["spec"].update(egress=[]),
        "are_reachable_by_gateways_alone",
        "gateways cannot reach triton:8002",
    ),
    "a service of no pod": (
        lambda o: named(o, "Service", "triton")["spec"]["selector"].update(app="x"),
        "select_pods",
        "selects no pod",
    ),
    "another port": (
        lambda o: named(o, "Service", "triton")["spec"]["ports"][0].update(port=8000),
        "expose_ports",
        "port grpc is not 8000",
    ),
    "a service with one address": (
        lambda o: named(o, "Service", "triton")["spec"].pop("clusterIP"),
        "expose_ports",
        "has no headless service",
    ),
    "a variable that is not read": (
        lambda o: _gateway(o)["env"].append({"name": "TRIPTYCH_WORKER", "value": "2"}),
        "have_settings_of_ours",
        "gateway reads no {'TRIPTYCH_WORKER'}",
    ),
    "a variable of the other command": (
        lambda o: _triton(o)["env"].append({"name": "TRIPTYCH_API_KEY", "value": "x"}),
        "have_settings_of_ours",
        "triton reads no {'TRIPTYCH_API_KEY'}",
    ),
    "a setting of storage that is not read": (
        lambda o: named(o, "ConfigMap", "object-storage")["data"].update(TRIPTYCH_URL="x"),
        "have_settings_of_ours",
        "pull reads no {'TRIPTYCH_URL'}",
    ),
    "a flag that there is not": (
        lambda o: _triton(o)["args"].extend(["--threads", "2"]),
        "have_settings_of_ours",
        "triton has no {'--threads'}",
    ),
    "an image of another name": (
        lambda o: _triton(o).update(image="tritonserver"),
        "have_images_of_ours",
        "no image tritonserver",
    ),
    "a mount of no volume": (
        lambda o: _triton(o)["volumeMounts"].append({"name": "plans", "mountPath": "/plans"}),
        "mount_what_exists",
        "mounts no {'plans'}",
    ),
    "a record in the root": (
        lambda o: _triton(o)["volumeMounts"].pop(1),
        "mount_what_exists",
        "--state /state/served.json is not on a volume",
    ),
    "too little time": (
        lambda o: pod(named(o, "Deployment", "gateway")).update(terminationGracePeriodSeconds=30),
        "drain",
        "is killed while it drains",
    ),
    "no preStop": (
        lambda o: _gateway(o).pop("lifecycle"),
        "drain",
        "gets SIGTERM before others know",
    ),
    "one replica": (lambda o: _workload(o).update(replicas=1), "drain", "one replica"),
    "a series that there is not": (
        lambda o: named(o, "ScaledObject", "triton")["spec"]["triggers"][0]["metadata"].update(
            query="sum(triptych_engine_queue)"
        ),
        "scale_by_series_that_exist",
        "no series {'triptych_engine_queue'}",
    ),
    "a scaled Deployment that there is not": (
        lambda o: named(o, "ScaledObject", "gateway")["spec"]["scaleTargetRef"].update(name="x"),
        "scale_by_series_that_exist",
        "gateway scales nothing",
    ),
    "a monitor of no port": (
        lambda o: named(o, "ServiceMonitor", "triton")["spec"]["endpoints"][0].update(port="http"),
        "scale_by_series_that_exist",
        "triton reads no port http",
    ),
}
"""What it is → how it is planted, the claim that finds it, and a part of what that yields."""
