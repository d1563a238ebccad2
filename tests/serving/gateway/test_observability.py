"""Background tasks, stalls of the event loop, metrics, trace context and spans of requests."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from pydantic import SecretStr

from inference.errors import InternalError, SetupError, Unavailable
from serving.gateway.observability import background_tasks
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.trace_context import TRACE, Trace, TraceContext, parse
from serving.gateway.requests import service
from serving.gateway.server.run_server import count_stalls, running_tasks
from serving.gateway.triton_client import stream_pool
from serving.gateway.triton_client.triton_inference import TritonInference
from tests.collector import CollectedSpan, Collector
from tests.programs import run_program
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.test_grpc import Front
from tests.serving.gateway.triton_client.test_triton import (
    BATCH,
    SEQUENCE,
    FakeTriton,
    fake,
    inference,
)
from tests.serving.waiting import settled, until
from triptych import triptych_pb2 as pb

FAILURES = (
    OSError(13, "Permission denied", "/models"),
    TypeError("unexpected keyword"),
    asyncio.CancelledError("Channel is closed."),
    TimeoutError(),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    yield
    # Retries use `random`, at which Hypothesis would stop in another test.
    for thread in [one for one in threading.enumerate() if one.name.startswith("OtelBatchSpan")]:
        thread.join()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def tasks(metrics: Metrics) -> AsyncIterator[BackgroundTasks]:
    made = BackgroundTasks(metrics.failed_in_background)
    yield made
    await made.close()


class Task:
    """Fails as it is told, then waits for ever."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.is_cancelled = False

    async def run(self) -> None:
        self.runs += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_task_that_fails_is_logged_counted_and_started_again(
    tasks: BackgroundTasks,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:
    task = Task(failure, failure)
    tasks.start("following", task.run)
    await until(lambda: task.runs == 3)
    await settled()
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["following failed" in record.message for record in lines] == [True, True]
    assert all(record.exc_info for record in lines)
    assert b'triptych_background_failures_total{task="following"} 2.0' in metrics.exposition()
    assert tasks.problem is None


async def test_a_task_ends_when_it_is_cancelled_whatever_it_raises_then(
    tasks: BackgroundTasks,
) -> None:
    class Stubborn(Task):
        async def run(self) -> None:
            try:
                await super().run()
            except asyncio.CancelledError:
                raise OSError("the connection is closed") from None

    for task in (Task(), Stubborn()):
        started = tasks.start("following", task.run)
        await until(lambda task=task: task.runs)
        await settled()
        started.cancel()
        await asyncio.wait([started])
        assert started.cancelled()
        assert (task.runs, task.is_cancelled) == (1, True)


async def test_a_task_that_returns_is_not_started_again(tasks: BackgroundTasks) -> None:
    runs = []

    async def run() -> None:
        runs.append(1)

    await tasks.start("watching", run)
    assert runs == [1]


async def test_close_ends_those_that_wait_to_be_started_again(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 20.0)
    tasks = BackgroundTasks(metrics.failed_in_background)
    waiting, running = Task(*FAILURES), Task()
    started = [tasks.start("following", one.run) for one in (waiting, running)]
    await until(lambda: tasks.problem)
    assert tasks.problem == "following failed (PermissionError)"
    await tasks.close()
    assert all(task.cancelled() for task in started)
    assert (tasks.problem, running.is_cancelled, waiting.runs) == (None, True, 1)


def values(metrics: Metrics) -> tuple[float, float]:
    found = dict(
        line.rsplit(" ", 1)
        for line in metrics.exposition().decode().splitlines()
        if line.startswith("triptych_event_loop")
    )
    stalls = float(found["triptych_event_loop_stalls_total"])
    return stalls, float(found["triptych_event_loop_stalled_seconds_total"])


async def test_stalls_are_counted_and_work_that_waits_is_not() -> None:
    metrics = Metrics()
    counting = asyncio.create_task(count_stalls(metrics))
    await asyncio.sleep(0.06)
    before = values(metrics)
    for _ in range(2):
        time.sleep(0.3)
        await asyncio.sleep(0.06)
    stalls, seconds = values(metrics)
    assert stalls - before[0] == 2
    assert 0.45 < seconds - before[1] < 3
    counting.cancel()


async def _inner(event: asyncio.Event) -> None:
    await event.wait()


async def _outer(event: asyncio.Event) -> None:
    await _inner(event)


def test_each_task_is_described_down_to_what_it_waits_for() -> None:
    async def run() -> list[str]:
        event = asyncio.Event()
        tasks = [asyncio.create_task(_outer(event), name=name) for name in ("first", "second")]
        await asyncio.sleep(0)
        found = running_tasks()
        event.set()
        await asyncio.gather(*tasks)
        return found

    first, second = asyncio.run(run())
    assert first.startswith("first: _outer:")
    assert " > _inner:" in first
    assert " > Event.wait:" in first
    assert second.startswith("second: ")


def test_file_that_a_starting_worker_has_not_filled_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").touch()
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()


def test_file_that_an_ending_worker_has_removed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").symlink_to(tmp_path / "removed")  # listed, and not there
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()


__all__ = ["fake", "inference"]

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
STATE = "vendor=a b,tenant@system=1"
BODY = {"texts": ["uno dos"]}


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (PARENT, 1),
        (f" {PARENT} ", 1),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", 0),
        (f"00-{TRACE_ID}-{SPAN_ID}-ff", 3),  # unknown flags are not passed on
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what the future brings", 1),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01", 1),
    ],
)
def test_context_of_a_header(header: str, flags: int) -> None:
    assert parse([header], []) == TraceContext(TRACE_ID, SPAN_ID, flags)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["junk"],
        [PARENT, PARENT],
        [PARENT.upper()],
        [PARENT + "-more"],
        [PARENT[:-1]],
        ["ff" + PARENT[2:]],
        [f"00-{'0' * 32}-{SPAN_ID}-01"],
        [f"00-{TRACE_ID}-{'0' * 16}-01"],
        [PARENT.replace("4", "４")],
    ],
)
def test_invalid_header_is_no_context(headers: list[str]) -> None:
    assert parse(headers, [STATE]) is None


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([STATE], STATE),
        (["a=1", "b=2,"], "a=1,b=2"),
        (["a=1,,b=2"], "a=1,b=2"),
        (["A=1"], ""),
        (["a"], ""),
        (["a=\u00e9"], ""),
        (["a=1\r\nx: y"], ""),
        (["a=" + "x" * 600], ""),
        ([",".join(f"k{number}=1" for number in range(33))], ""),
    ],
)
def test_state_is_passed_on_only_if_it_is_valid(given: list[str], taken: str) -> None:
    context = parse([PARENT], given)
    assert context.state == taken


def test_nothing_of_an_invalid_header_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for parent, state in (
        (PARENT, "secret"),
        (PARENT, "a=1,a=1"),
        (f"cc{PARENT[2:]}-{'x' * 600}", ""),
    ):
        parse([parent], [state])
    assert caplog.records == []


async def test_ids_are_logged_and_returned(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    headers = {"traceparent": PARENT, "tracestate": STATE, "x-request-id": "mine"}
    response = await gateway.http.post("/v1/translate", json=BODY, headers=headers)
    assert response.headers["traceresponse"] == PARENT
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert (line.trace_id, line.span_id, line.request_id) == (TRACE_ID, SPAN_ID, "mine")


async def test_failed_requests_have_them_too(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    response = await gateway.post(
        "/v1/translate", json={}, headers={"traceparent": PARENT}, status=422
    )
    assert response.headers["traceresponse"] == PARENT
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert (line.trace_id, line.error) == (TRACE_ID, "invalid_request")


async def test_request_without_a_context_has_no_trace(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for headers in ({}, {"traceparent": "00-junk"}):
        response = await gateway.post("/v1/translate", json=BODY, headers=headers)
        assert "traceresponse" not in response.headers
        assert not any(hasattr(record, "trace_id") for record in caplog.records)


async def test_one_request_does_not_inherit_the_trace_of_another(gateway: Gateway) -> None:
    await gateway.http.post("/v1/translate", json=BODY, headers={"traceparent": PARENT})
    later = await gateway.http.post("/v1/translate", json=BODY)
    assert "traceresponse" not in later.headers


async def test_grpc_metadata(make_gateway: MakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metadata = (("traceparent", PARENT), ("tracestate", STATE))
    async with Front(make_gateway(grpc_port=0)) as front:
        call = front.stub.Translate(pb.TranslateRequest(texts=["uno"]), metadata=metadata)
        await call
        assert dict(await call.trailing_metadata())["traceresponse"] == PARENT
        assert caplog.records[-1].trace_id == TRACE_ID
        stream = front.stub.GenerateStream(pb.GenerateRequest(prompts=["uno"]), metadata=metadata)
        assert [chunk async for chunk in stream]
        assert dict(await stream.trailing_metadata())["traceresponse"] == PARENT
        failed = front.stub.Translate(pb.TranslateRequest(), metadata=metadata)
        with pytest.raises(grpc.RpcError) as refused:
            await failed
        assert dict(refused.value.trailing_metadata())["traceresponse"] == PARENT


async def test_calls_to_triton_carry_the_context(
    fake: FakeTriton, inference: TritonInference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_pool, "UNUSED_S", 0.01)
    context = TraceContext(TRACE_ID, SPAN_ID, 1, "a=1")
    expected = {"traceparent": PARENT, "tracestate": "a=1"}
    fake.refusal = (grpc.StatusCode.INTERNAL, "no")
    for trace, headers in (
        (Trace(context), expected),
        (Trace(TraceContext(TRACE_ID, SPAN_ID, 0)), {}),  # Triton would trace it nevertheless
        (None, {}),
    ):
        TRACE.set(trace)
        for work in (inference.infer(BATCH, 5), inference.generate(SEQUENCE, 5)):
            fake.metadata.clear()
            with pytest.raises(InternalError):
                await work
            (given,) = fake.metadata
            assert {name: given[name] for name in given if name.startswith("trace")} == headers


async def test_traced_sequence_has_a_stream_of_its_own(
    fake: FakeTriton, inference: TritonInference
) -> None:
    fake.hangs = True
    work = []
    for parent in (None, PARENT, None, PARENT):
        context = parse([parent], []) if parent else None
        TRACE.set(Trace(context) if context else None)
        call = inference.stream(SEQUENCE, 5)
        work.append((call, asyncio.ensure_future(anext(call))))
    while len(fake.requests) < 4:
        await asyncio.sleep(0)
    assert [("traceparent" in given) for given in fake.metadata].count(True) == 2
    assert len(fake.metadata) == 3
    for _, task in work:
        task.cancel()


def test_nothing_of_opentelemetry_is_imported_without_the_flag() -> None:
    program = (
        "import sys, serving.gateway.server.run_server, serving.gateway.server.app; "
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk') "
        "or name.startswith('opentelemetry.exporter')])"
    )
    assert run_program(sys.executable, "-c", program).strip() == "[]"


async def test_endpoint_without_the_extra_is_one_clear_line(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("serving.gateway.observability.otlp", "opentelemetry.sdk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SetupError, match=r"pip install 'triptych\[otlp\]'"):
        make_gateway(otlp_endpoint="http://127.0.0.1:4318")


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


@pytest.fixture
def traced(make_gateway: MakeGateway, collector: Collector) -> Gateway:
    return make_gateway(otlp_endpoint=collector.url)


async def test_spans_of_a_request(traced: Gateway, collector: Collector) -> None:
    response = await traced.http.post(
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
    gateway = make_gateway(otlp_endpoint=collector.url)
    await gateway.http.post("/v1/translate", json={"texts": [SECRET]})
    assert collector.wait(roots)


async def test_spans_of_a_stream_end_with_it(traced: Gateway, collector: Collector) -> None:
    response = await traced.http.post("/v1/generate", json={"prompts": [SECRET], "stream": True})
    assert "[DONE]" in response.text
    spans = collector.wait(roots)
    (root,) = roots(spans)
    call = below(spans, root)["tiny-generate"]
    assert call.events == ("first chunk",)
    assert root.parent_id == ""


async def test_spans_of_a_stateless_call(traced: Gateway, collector: Collector) -> None:
    await traced.http.post("/v1/embed", json={"texts": [SECRET, SECRET + " dos"]})
    spans = collector.wait(roots)
    (root,) = roots(spans)
    calls = [span for span in spans if "triptych.rows" in span.attributes]
    assert sum(int(call.attributes["triptych.rows"]) for call in calls) == 2
    assert all(call.parent_id == root.span_id for call in calls)


async def test_failures(traced: Gateway, collector: Collector) -> None:
    traced.inference.failures["tiny-translate"] = Unavailable("down", retry_after_s=1)
    await traced.http.post("/v1/translate", json={"texts": [SECRET]})
    await traced.http.post("/v1/translate", json={"texts": 7})
    await traced.http.get(f"/no/such/{SECRET}")
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
    async with Front(make_gateway(otlp_endpoint=collector.url, grpc_port=0)) as front:
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
    gateway = make_gateway(otlp_endpoint=collector.url, api_key=SecretStr(KEY))
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


async def test_probes_are_not_traced(traced: Gateway, collector: Collector) -> None:
    for path in ("/health", "/ready", "/metrics"):
        await traced.http.get(path)
    await traced.http.get("/v1/models")
    collector.wait(roots)
    assert [span.name for span in collector.spans] == ["GET /v1/models"]


async def test_sampling_by_the_standard_variables(
    make_gateway: MakeGateway, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    gateway = make_gateway(otlp_endpoint=collector.url)
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
    gateway = make_gateway(otlp_endpoint=collector.url)
    for _ in range(30):  # more than the queue takes
        await gateway.post("/v1/translate", json={"texts": [SECRET]})
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
        await gateway.post("/v1/translate", json={"texts": [SECRET]})
