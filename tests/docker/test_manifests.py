"""Kustomize's overlays and the chart are the same objects, and hold what the claims say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from serving.gateway.http.middleware import _OPEN
from serving.gateway.http.routes import system_routes
from tests.docker import manifests
from tests.docker.faults import FAULTS
from tests.docker.manifests import (
    CLAIMS,
    CUSTOM,
    FOLDER,
    VARIANTS,
    WORKLOADS,
    Claim,
    Object,
    charted,
    containers,
    is_reachable,
    key,
    kustomized,
    of_kind,
    pod,
    pod_labels,
    probe_what_exists,
    reaches_outside,
    read,
    rendered,
)

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl builds Kustomize's overlays"
)
STORED: dict[str, Any] = {"repository": {"url": "s3://models/triptych"}}
SCALED: dict[str, Any] = {"autoscaling": {"enabled": True}}
SAME = {
    "overlays/cpu": {},
    "overlays/gpu": {"variant": "gpu"},
    "overlays/several-models": {"variant": "several-models", **STORED},
    **{f"complete/{name}": {"variant": name, **STORED, **SCALED} for name in VARIANTS},
}
"""Folder of Kustomize → values of the chart that make the same objects."""


ALL: tuple[Claim, ...] = (*CLAIMS, probe_what_exists(system_routes(None), _OPEN))


CLAIM_OF = {**{claim.__name__: claim for claim in CLAIMS}, "probe_what_exists": ALL[-1]}


def wrong(objects: list[Object]) -> list[str]:
    return [problem for claim in ALL for problem in claim(objects)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_committed_objects_hold_every_claim(variant: str) -> None:
    assert wrong(rendered(variant)) == []


@needs_kubectl
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(name, marks=[] if name.endswith("/cpu") else [pytest.mark.full])
        for name in SAME
    ],
)
def test_chart_and_kustomize_make_the_same_objects(folder: str) -> None:
    expected = read(kustomized(folder))
    assert wrong(expected) == []
    made = charted(SAME[folder])
    assert {key(each): each for each in made} == {key(each): each for each in expected}
    assert len(made) == len(expected)


@needs_kubectl
@pytest.mark.parametrize("variant", VARIANTS)
def test_committed_objects_are_what_kustomize_builds(variant: str) -> None:
    assert (FOLDER / "chart" / "rendered" / f"{variant}.yaml").read_text() == kustomized(
        f"complete/{variant}"
    ), "run docker/kubernetes/render.sh"


def test_chart_puts_values_in() -> None:
    values = {
        "images": {"registry": "registry.example.org/a/", "tag": "1.2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "repository": {"url": "s3://b", "settings": {"AWS_REGION": "eu-central-1"}},
        "bundles": {"triton": ["mine", "yours"]},
        "replicas": {"triton": 3},
        "resources": {"triton": {"limits": {"memory": "12Gi"}}},
        "arguments": {"triton": ["--max-rows", "128"]},
        "env": {"gateway": [{"name": "TRIPTYCH_WORKERS", "value": "2"}]},
        "nodeSelector": {"triton": {"disk": "fast"}},
        "tolerations": {"triton": [{"key": "a", "operator": "Exists"}]},
    }
    made = charted(values)
    assert wrong(made) == []
    found = {key(each): each for each in made}
    triton, gateway = found["StatefulSet", "triton"], found["Deployment", "gateway"]
    for container in (*containers(triton), *containers(gateway)):
        assert container["image"].startswith("registry.example.org/a/triptych-")
        assert container["image"].endswith(":1.2")
        assert container["imagePullPolicy"] == "Always"
    assert found["ConfigMap", "object-storage"]["data"] == {
        "TRIPTYCH_REPOSITORY_URL": "s3://b", "AWS_REGION": "eu-central-1"
    }  # fmt: skip
    assert pod(triton)["initContainers"][0]["args"][-1] == "--bundles=mine,yours"
    assert (triton["spec"]["replicas"], gateway["spec"]["replicas"]) == (3, 2)
    [container] = pod(triton)["containers"]
    assert container["resources"]["limits"] == {"memory": "12Gi"}
    assert container["resources"]["requests"]["cpu"] == "2"
    assert container["args"][-2:] == ["--max-rows", "128"]
    assert {"name": "TRIPTYCH_WORKERS", "value": "2"} in pod(gateway)["containers"][0]["env"]
    assert pod(triton)["nodeSelector"] == {"disk": "fast"}
    assert pod(triton)["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert pod(triton)["imagePullSecrets"] == [{"name": "registry"}]
    [claim] = [v for v in pod(found["StatefulSet", "triton"])["volumes"] if v["name"] == "models"]
    assert "emptyDir" in claim


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "several-models"}, "several-models needs repository.url"),
        ({"variant": "tpu"}, "one of 'cpu', 'gpu', 'several-models'"),
        ({"replica": {}}, "replica"),
    ],
)
def test_chart_refuses_values_that_mean_nothing(values: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        charted(values)


def test_init_containers_alone_need_storage() -> None:
    """Without object storage a Triton reaches nothing, and a gateway Tritons and names alone."""
    objects = charted({})
    labels = {each["metadata"]["name"]: pod_labels(each) for each in of_kind(objects, *WORKLOADS)}
    assert not reaches_outside(objects, labels["triton"], 443)
    assert not reaches_outside(objects, labels["gateway"], 443)
    assert reaches_outside(objects, labels["gateway"], 53)
    assert reaches_outside(charted(STORED), labels["triton"], 443)
    assert not reaches_outside(charted(STORED), labels["triton"], 80)


def test_prometheus_reads_tritons_metrics_and_no_more() -> None:
    objects = rendered("cpu")
    [triton] = of_kind(objects, "StatefulSet")
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    reached = [
        port
        for port in (8001, 8002)
        if is_reachable(objects, prometheus, pod_labels(triton), port, monitoring)
    ]
    assert reached == [8002]


@pytest.mark.parametrize("path", sorted((FOLDER / "kserve").glob("*.yaml")), ids=lambda p: p.stem)
def test_kserves_pods_are_the_deployments(path: Path) -> None:
    """Same images, arguments but for addresses, probes and privileges, so the claims hold there."""
    objects = read(path.read_text())
    [found] = objects
    assert found["kind"] in CUSTOM
    if found["kind"] == "InferenceService":
        [runtime] = read((FOLDER / "kserve" / "serving-runtime.yaml").read_text())
        model = found["spec"]["predictor"]["model"]
        formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
        assert model["runtime"] == runtime["metadata"]["name"]
        assert model["modelFormat"]["name"] in formats
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        return
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in found["spec"]["containers"]:
        assert security.items() <= container["securityContext"].items()
        for each in manifests.PROBES:
            http = container[each].get("httpGet")
            assert (
                http is None
                or http["path"] in {route.path for route in system_routes(None)} & _OPEN
            )
            if http:
                container[each]["httpGet"]["port"] = "http"
        container.setdefault("ports", [{"name": "grpc", "containerPort": 8001}])
        for port in container["ports"]:
            port["name"] = "http" if port["name"] == "http1" else port["name"]
    spec = {
        **found["spec"],
        "securityContext": security,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 90,
    }
    workload: Object = {
        "kind": "Deployment",
        "metadata": {"name": "kserve"},
        "spec": {"template": {"metadata": {"labels": {}}, "spec": spec}, "selector": {}},
    }
    checked = (
        manifests.have_no_privileges,
        manifests.have_settings_of_ours,
        manifests.have_images_of_ours,
        manifests.mount_what_exists,
        probe_what_exists(system_routes(None), _OPEN),
    )
    assert [problem for claim in checked for problem in claim([workload])] == []


@pytest.mark.full
@pytest.mark.skipif("CRD_SCHEMAS" not in os.environ, reason="CRD_SCHEMAS is no folder of schemas")
def test_custom_resources_fit_their_schemas() -> None:
    """`CRD_SCHEMAS` has files like `scaledobject_v1alpha1.json`, JSON schemas of the CRDs."""
    objects = [one for variant in VARIANTS for one in rendered(variant)]
    objects += [
        one for path in (FOLDER / "kserve").glob("*.yaml") for one in read(path.read_text())
    ]
    custom = [each for each in objects if each["kind"] in CUSTOM]
    assert {each["kind"] for each in custom} == CUSTOM
    for each in custom:
        version = each["apiVersion"].split("/")[1]
        file = Path(os.environ["CRD_SCHEMAS"]) / f"{each['kind'].lower()}_{version}.json"
        jsonschema.validate(each, json.loads(file.read_text()))


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    plant, name, message = FAULTS[fault]
    claim = CLAIM_OF[name]
    objects = rendered("cpu")
    assert list(claim(objects)) == []
    plant(objects)
    found = list(claim(objects))
    assert any(message in problem for problem in found), found


def test_no_claim_is_one_that_cannot_fail() -> None:
    assert {name for _, name, _ in FAULTS.values()} == CLAIM_OF.keys()


def test_every_file_is_part_of_an_overlay() -> None:
    for file in FOLDER.rglob("kustomization.yaml"):
        kept = yaml.safe_load(file.read_text())
        used = {Path(each).name for each in kept.get("resources", ())}
        used |= {Path(each["path"]).name for each in kept.get("patches", ()) if "path" in each}
        there = {path.name for path in file.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert there == used & {name for name in used if name.endswith(".yaml")}, file
