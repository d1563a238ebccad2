"""Objects of Kubernetes, and which pods reach which ports."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

FOLDER = Path(__file__).parents[3] / "docker" / "kubernetes"
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
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER / folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
