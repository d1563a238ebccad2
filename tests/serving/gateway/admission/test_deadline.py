"""A client's own time limit ends its request down to the engine."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.grpc.test_grpc_front import Front
from tests.serving.waiting import until
from triptych import triptych_pb2 as pb

BODY = {"texts": ["uno dos"]}


def limits_of_calls(gateway: Gateway) -> list[float]:
    """Filled as calls run."""
    limits: list[float] = []
    generate = gateway.inference.generate

    async def observed(call, timeout_s):
        limits.append(timeout_s)
        return await generate(call, timeout_s)

    gateway.inference.generate = observed
    return limits


async def test_header_shortens_the_time_of_a_request(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    gateway.inference.hold = asyncio.Event()
    headers = {"x-request-timeout": "0.05"}
    response = await gateway.http.post("/v1/translate", json=BODY, headers=headers)
    assert response.status_code == 504
    assert "within 0.05 s" in response.json()["error"]["message"]
    assert (gateway.inference.running, gateway.inference.cancelled) == (0, 1)


async def test_header_does_not_lengthen_it(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(request_timeout=0.05)
    gateway.inference.hold = asyncio.Event()
    headers = {"x-request-timeout": "100"}
    response = await gateway.http.post("/v1/translate", json=BODY, headers=headers)
    assert response.status_code == 504


async def test_limit_reaches_the_call(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    limits = limits_of_calls(gateway)
    headers = {"x-request-timeout": "7"}
    await gateway.http.post("/v1/translate", json=BODY, headers=headers)
    await gateway.http.post("/v1/translate", json=BODY)
    assert 6 < limits[0] <= 7
    assert 59 < limits[1] <= 60, "one request's limit was left to the next"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "", "1e999"])
async def test_limit_that_is_no_time_is_refused(make_gateway: MakeGateway, value: str) -> None:
    gateway = make_gateway()
    headers = {"x-request-timeout": value}
    response = await gateway.http.post("/v1/translate", json=BODY, headers=headers)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "x-request-timeout"
    assert gateway.inference.calls == []


async def test_deadline_of_a_grpc_call_reaches_the_call(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(grpc_port=0)
    gateway.inference.hold = asyncio.Event()
    limits = limits_of_calls(gateway)
    async with Front(gateway) as front:
        with pytest.raises(grpc.RpcError) as ended:
            await front.stub.Translate(pb.TranslateRequest(texts=["uno"]), timeout=0.3)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not gateway.inference.running)
    assert 0 < limits[0] <= 0.31  # gRPC converts the deadline between two clocks
    assert gateway.inference.cancelled == 1


async def test_limit_bounds_all_texts_of_a_libretranslate_request(
    make_gateway: MakeGateway,
) -> None:
    """They are translated in requests of four, each of which would have the whole limit."""
    gateway = make_gateway(max_client_batch_size=4)
    generate = gateway.inference.generate

    async def slow(call, timeout_s):
        await asyncio.sleep(0.03)
        return await generate(call, timeout_s)

    gateway.inference.generate = slow
    asked = {"q": [f"uno {number}" for number in range(80)], "source": "es", "target": "en"}
    headers = {"x-request-timeout": "0.1"}
    began = asyncio.get_running_loop().time()
    response = await gateway.http.post("/translate", json=asked, headers=headers)
    assert asyncio.get_running_loop().time() - began < 0.4, "twenty batches of 0.03 s"
    assert response.status_code == 504
    assert "within 0.1 s" in response.json()["error"]
    assert gateway.inference.running == 0
