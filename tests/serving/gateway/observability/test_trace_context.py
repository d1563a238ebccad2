"""W3C trace context: read from requests, logged, returned, and sent on to Triton."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import grpc
import pytest

from inference.errors import InternalError, SetupError
from serving.gateway.observability.trace_context import TRACE, Trace, TraceContext, parse
from serving.gateway.triton_client import stream_pool
from serving.gateway.triton_client.triton_inference import TritonInference
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.grpc.test_grpc_front import Front
from tests.serving.gateway.triton_client.test_triton import BATCH, SEQUENCE, FakeTriton, triton
from triptych import triptych_pb2 as pb

__all__ = ["triton"]

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
    response = await gateway.http.post("/v1/translate", json={}, headers={"traceparent": PARENT})
    assert response.status_code == 422
    assert response.headers["traceresponse"] == PARENT
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert (line.trace_id, line.error) == (TRACE_ID, "invalid_request")


async def test_request_without_a_context_has_no_trace(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for headers in ({}, {"traceparent": "00-junk"}):
        response = await gateway.http.post("/v1/translate", json=BODY, headers=headers)
        assert response.status_code == 200
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
    triton: tuple[FakeTriton, TritonInference], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, inference = triton
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
    triton: tuple[FakeTriton, TritonInference],
) -> None:
    fake, inference = triton
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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_endpoint_without_the_extra_is_one_clear_line(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("serving.gateway.observability.otlp", "opentelemetry.sdk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SetupError, match=r"pip install 'triptych\[otlp\]'"):
        make_gateway(otlp_endpoint="http://127.0.0.1:4318")
