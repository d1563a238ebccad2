"""Which pods reach which ports, as network policies of one namespace say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.docker.kubernetes.manifests import Object, of_kind, selects

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
