"""Spans of requests, received and parsed by a collector in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pydantic import SecretStr, ValidationError

from inference.errors import Unavailable
from serving.gateway.requests import service
from serving.settings.gateway_settings import GatewaySettings
from tests.collector import CollectedSpan, Collector
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.grpc.test_grpc_front import Front
from tests.serving.gateway.observability.test_trace_context import PARENT, SPAN_ID, TRACE_ID
from triptych import triptych_pb2 as pb

SECRET = "corazon"
KEY = "very-secret-key"
SERVER = 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with Collector() as collector:
        yield collector


def roots(spans: list[CollectedSpan]) -> list[CollectedSpan]:
    return [span for span in spans if span.kind == SERVER]


def below(spans: list[CollectedSpan], parent: CollectedSpan) -> dict[str, CollectedSpan]:
    return {span.name: span for span in spans if span.parent_id == parent.span_id}


def traced(make_gateway: MakeGateway, collector: Collector, **settings: object) -> Gateway:
    return make_gateway(otlp_endpoint=collector.url, **settings)


async def test_spans_of_a_request(make_gateway: MakeGateway, collector: Collector) -> None:
    gateway = traced(make_gateway, collector)
    response = await gateway.http.post(
        "/v1/translate",
        json={"texts": [SECRET]},
        headers={"traceparent": PARENT, "tracestate": "vendor=1"},
    )
    spans = collector.wait(roots)
    (root,) = roots(spans)
    assert (root.trace_id, root.parent_id, root.state) == (TRACE_ID, SPAN_ID, "vendor=1")
    assert response.headers["traceresponse"] == f"00-{TRACE_ID}-{root.span_id}-01"
    assert (root.name, root.service) == ("POST /v1/translate", "triptych-gateway")
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/translate",
        "http.response.status_code": 200,
        "triptych.task": "translate",
        "triptych.model": "tiny-translate",
    }
    phases = below(spans, root)
    assert set(phases) == {"preprocess", "tiny-translate", "postprocess"}
    call = phases["tiny-translate"]
    assert call.attributes["triptych.version"] == 3
    assert call.attributes["triptych.completion_tokens"] == 2
    queue = below(spans, call)["queue"]
    times = [phases["preprocess"], queue, phases["postprocess"]]
    assert [span.start_ns for span in times] == sorted(span.start_ns for span in times)
    slack_ns = 1_000_000  # two clocks
    for span in spans:
        assert root.start_ns - slack_ns <= span.start_ns <= span.end_ns <= root.end_ns + slack_ns


async def test_collector_on_this_machine_is_reached_without_a_proxy(
    make_gateway: MakeGateway, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    gateway = traced(make_gateway, collector)
    await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
    assert collector.wait(roots)


async def test_spans_of_a_stream_end_with_it(
    make_gateway: MakeGateway, collector: Collector
) -> None:
    gateway = traced(make_gateway, collector)
    response = await gateway.http.post("/v1/generate", json={"prompts": [SECRET], "stream": True})
    assert "[DONE]" in response.text
    spans = collector.wait(roots)
    (root,) = roots(spans)
    call = below(spans, root)["tiny-generate"]
    assert call.events == ("first chunk",)
    assert root.parent_id == ""


async def test_spans_of_a_stateless_call(make_gateway: MakeGateway, collector: Collector) -> None:
    gateway = traced(make_gateway, collector)
    await gateway.http.post("/v1/embed", json={"texts": [SECRET, SECRET + " dos"]})
    spans = collector.wait(roots)
    (root,) = roots(spans)
    calls = [span for span in spans if "triptych.rows" in span.attributes]
    assert sum(int(call.attributes["triptych.rows"]) for call in calls) == 2
    assert all(call.parent_id == root.span_id for call in calls)


async def test_failures(make_gateway: MakeGateway, collector: Collector) -> None:
    gateway = traced(make_gateway, collector)
    gateway.inference.failures["tiny-translate"] = Unavailable("down", retry_after_s=1)
    await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
    await gateway.http.post("/v1/translate", json={"texts": 7})
    await gateway.http.get(f"/no/such/{SECRET}")
    spans = collector.wait(lambda spans: len(roots(spans)) == 3)
    found = {
        (span.name, span.attributes["http.response.status_code"]): span for span in roots(spans)
    }
    fault = found["POST /v1/translate", 503]
    assert fault.is_error
    assert fault.attributes["error.type"] == Unavailable.wire
    assert below(spans, fault)["tiny-translate"].attributes["error.type"] == Unavailable.wire
    assert not found["POST /v1/translate", 422].is_error
    assert ("GET unmatched", 404) in found


async def test_spans_over_grpc(make_gateway: MakeGateway, collector: Collector) -> None:
    async with Front(traced(make_gateway, collector, grpc_port=0)) as front:
        metadata = (("traceparent", PARENT),)
        await front.stub.Translate(pb.TranslateRequest(texts=[SECRET]), metadata=metadata)
        stream = front.stub.GenerateStream(pb.GenerateRequest(prompts=[SECRET]))
        assert [chunk async for chunk in stream]
        spans = collector.wait(lambda spans: len(roots(spans)) == 2)
    by_name = {span.name: span for span in roots(spans)}
    unary = by_name["triptych.v1.Triptych/Translate"]
    assert (unary.trace_id, unary.parent_id) == (TRACE_ID, SPAN_ID)
    assert unary.attributes["rpc.method"] == "Translate"
    assert set(below(spans, unary)) == {"preprocess", "tiny-translate", "postprocess"}
    assert "tiny-generate" in below(spans, by_name["triptych.v1.Triptych/GenerateStream"])


async def test_no_text_and_no_key_is_exported(
    make_gateway: MakeGateway, collector: Collector
) -> None:
    gateway = traced(make_gateway, collector, api_key=SecretStr(KEY))
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": SECRET}
    for path, body in (
        ("/v1/translate", {"texts": [SECRET]}),
        ("/v1/generate", {"prompts": [SECRET], "stream": True, "stop": [SECRET]}),
        ("/v1/translate", {"texts": [SECRET], "model": SECRET}),
        (f"/hf/{SECRET}", {"inputs": SECRET}),
        ("/translate", {"q": SECRET, "source": "es", "target": "en", "api_key": KEY}),
        (f"/v1/{SECRET}?q={SECRET}", {}),
    ):
        await gateway.http.post(path, json=body, headers=headers)
    collector.wait(lambda spans: len(roots(spans)) == 6)
    exported = b"".join(collector.bodies)
    assert SECRET.encode() not in exported
    assert KEY.encode() not in exported


async def test_probes_are_not_traced(make_gateway: MakeGateway, collector: Collector) -> None:
    gateway = traced(make_gateway, collector)
    for path in ("/health", "/ready", "/metrics"):
        await gateway.http.get(path)
    await gateway.http.get("/v1/models")
    collector.wait(roots)
    assert [span.name for span in collector.spans] == ["GET /v1/models"]


async def test_sampling_by_the_standard_variables(
    make_gateway: MakeGateway, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    gateway = traced(make_gateway, collector)
    unsampled = await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
    assert unsampled.headers["traceresponse"][-1] in "02"  # not sampled
    headers = {"traceparent": PARENT}
    await gateway.http.post("/v1/translate", json={"texts": [SECRET]}, headers=headers)
    spans = collector.wait(roots)
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert {span.service for span in spans} == {"mine"}


async def test_collector_that_hangs_delays_no_request(
    make_gateway: MakeGateway, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(service, "EXPORT_S", 0.1)
    collector.hold = threading.Event()
    gateway = traced(make_gateway, collector)
    for _ in range(30):  # more than the queue takes
        response = await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
        assert response.status_code == 200
    assert not collector.spans
    await gateway.close()
    assert not collector.spans  # it has not waited for it either


async def test_collector_that_is_down_fails_no_request(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr(service, "EXPORT_S", 0.1)
    gateway = make_gateway(otlp_endpoint="http://127.0.0.1:1")
    for _ in range(5):
        response = await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
        assert response.status_code == 200


def test_the_standard_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIPTYCH_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert str(GatewaySettings().otlp_endpoint) == "http://collector:4318/"
    assert str(GatewaySettings(otlp_endpoint="http://b:1").otlp_endpoint) == "http://b:1/"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    assert GatewaySettings().otlp_endpoint is None
    with pytest.raises(ValidationError):
        GatewaySettings(otlp_endpoint="collector:4318")
