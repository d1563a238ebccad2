"""Dashboard and alerts use metrics and labels that are really emitted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.gateway.observability.metrics import Metrics, Timings
from serving.liveness.heartbeat import COUNTERS, GAUGES, PREFIX, labels
from tests.programs import run_program
from tests.serving.triton.tiny import brief_server, publish_times, settings

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "triptych.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
_NAME = re.compile(r"\b(?:triptych|nv)_[a-z_]+\b")
_SELECTED = re.compile(r"\b((?:triptych|nv)_[a-z_]+)\{([^}]*)\}")
_TRITON = ("nv_inference_pending_request_count", "nv_inference_request_failure")


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["name"], variable["definition"]
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]


def emitted() -> Mapping[str, set[str]]:
    """Name of a series → its labels, of the gateway and of engines."""
    metrics = Metrics()
    metrics.count_answer("/v1/translate", 0.1, "internal")
    metrics.count_answer("/v1/translate", 0.1, None)
    metrics.observe_timings("/v1/translate", Timings(0, 0, 0))
    metrics.observe_call("model", 4, 2)
    metrics.closed_connections.labels("idle").inc()
    metrics.first_token("/v1/translate").observe(1)
    metrics.inter_token("/v1/translate").observe(1)
    found = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }
    engine = set(labels("model", "1", "0", 1))
    return found | {PREFIX + name: engine for name in (*COUNTERS, *GAUGES)}


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_series_and_labels_exist(place: str, expression: str) -> None:
    series = {**emitted(), **{name: {"model", "version"} for name in _TRITON}, "up": {"job"}}
    names = set(_NAME.findall(expression))
    assert names or "up{" in expression, place
    assert names <= series.keys(), names - series.keys()
    for name, selectors in _SELECTED.findall(expression):
        chosen = {part.split("=")[0].rstrip("!~ ") for part in selectors.split(",")}
        assert chosen <= series[name], (place, name, chosen)
    known = set.union(set(), *(series[name] for name in names)) | {"job", "le"}
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= known, (place, group)


def test_every_metric_of_the_gateway_is_shown() -> None:
    """What no panel shows is not looked at."""
    shown = " ".join(expression for _, expression in expressions())
    unseen = {
        name
        for name in emitted()
        if not name.endswith(("_created", "_bucket", "_sum", "_count"))
        and name.startswith("triptych_")
        and not name.startswith(PREFIX)
        and name not in shown
    }
    assert unseen <= {"triptych_request_success_total"}


def test_panels_have_distinct_places() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_alerts_say_what_to_do() -> None:
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert len(alert["annotations"]["summary"]) > 20


def test_compose_mounts_what_exists() -> None:
    services = yaml.safe_load((FOLDER.parent / "compose.monitoring.yaml").read_text())["services"]
    base = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())
    for service in services.values():
        assert set(service["networks"]) <= set(base["networks"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FOLDER.parent / source).exists(), source
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    targets = [target for job in scraped for target in job["static_configs"][0]["targets"]]
    assert {target.split(":")[0] for target in targets} <= set(base["services"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
@pytest.mark.parametrize(
    "check", [("check", "config", "prometheus.yaml"), ("test", "rules", "alerts_test.yaml")]
)
def test_prometheus_accepts_it(check: tuple[str, ...]) -> None:
    run_program("promtool", *check, cwd=FOLDER)


@pytest.mark.integration
def test_triton_emits_its_own(tmp_path: Path) -> None:
    publish_times(tmp_path, "twice", 2)
    with brief_server(settings(tmp_path)) as server:
        text = httpx.get(f"http://{server.metrics_address}/metrics").text
    for name in _TRITON:
        found = re.search(rf"^{name}\{{(.*)\}}", text, re.MULTILINE)
        assert found, name
        assert 'model="twice"' in found[1]
