"""One trace through a real gateway and a real Triton, as a collector receives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.collector import CollectedSpan, Collector
from tests.e2e.conftest import Stack, running
from tests.e2e.text_bundles import copy_models
from triptych import Client

pytestmark = pytest.mark.integration

TRANSLATOR, EMBEDDER = "example-es-en", "example-bert-embed"
TRIES = 5
"""Requests of each kind, because Triton itself loses the spans of some (docs/operations.md)."""
TRACES = {
    name: [f"{digit}{number}" * 16 for number in range(TRIES)]
    for digit, name in enumerate(("unary", "embed"), 1)
}
UNSAMPLED = "a" * 32
SPAN_ID = "00f067aa0ba902b7"
GATEWAY, TRITON = "triptych-gateway", "triptych-triton"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def stack(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("traces")
    with running(
        copy_models(repository, folder, (TRANSLATOR, EMBEDDER)),
        folder,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY=50,
        TRIPTYCH_JSON_OUTPUT="true",
    ) as stack:
        yield stack


def ask(stack: Stack, path: str, body: dict[str, object], trace_id: str, flags: str = "01") -> None:
    headers = {"traceparent": f"00-{trace_id}-{SPAN_ID}-{flags}"}
    response = httpx.post(stack.url + path, json=body, headers=headers, timeout=60)
    assert response.status_code == 200, response.text


def test_one_trace_has_the_spans_of_both_servers(stack: Stack, collector: Collector) -> None:
    text = "Ana compra un libro."
    ask(stack, "/v1/translate", {"texts": [text]}, UNSAMPLED, "00")
    for number in range(TRIES):
        ask(stack, "/v1/translate", {"texts": [text]}, TRACES["unary"][number])
        ask(stack, "/v1/embed", {"texts": [f"lamp {number}"]}, TRACES["embed"][number])

    def complete(spans: list[CollectedSpan]) -> dict[str, str]:
        """The first trace of each kind that has all spans."""
        triton = {span.trace_id for span in spans if span.service == TRITON}
        roots = {span.trace_id for span in spans if span.parent_id == SPAN_ID}  # exported last
        both = triton & roots
        found = {kind: [each for each in ids if each in both] for kind, ids in TRACES.items()}
        return {kind: ids[0] for kind, ids in found.items() if ids}

    spans = collector.wait(lambda spans: len(complete(spans)) == len(TRACES))
    assert UNSAMPLED not in {span.trace_id for span in spans}
    traces = complete(spans)
    for name, model in (("unary", TRANSLATOR), ("embed", EMBEDDER)):
        own = [span for span in spans if span.trace_id == traces[name]]
        by_id = {span.span_id: span for span in own}
        (root,) = [span for span in own if span.parent_id == SPAN_ID]
        assert root.service == GATEWAY
        assert root.attributes["triptych.model"] == model
        (triton,) = [s for s in own if s.service == TRITON and s.name == "InferRequest"]
        call = by_id[triton.parent_id]
        assert (call.service, call.parent_id) == (GATEWAY, root.span_id)
    assert text.encode() not in b"".join(collector.bodies)
    lines = [line for line in stack.log.read_text().splitlines() if traces["unary"] in line]
    (entry,) = [json.loads(line) for line in lines if '"answered"' in line]
    assert entry["trace_id"] == traces["unary"]
    assert entry["span_id"] in {span.span_id for span in spans}


def test_requests_are_answered_while_the_collector_is_down(
    stack: Stack, collector: Collector
) -> None:
    collector.__exit__()
    with Client(stack.url, timeout=60) as client:
        for number in range(20):
            assert client.translate([f"Ana compra {number} libros."]).data[0].text
        assert client.ready()
