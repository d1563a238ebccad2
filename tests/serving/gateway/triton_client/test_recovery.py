"""Calls whose model or server ends, also within streams, and servers that come back."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inference.errors import Quarantined, Unavailable
from inference.generation import Finished, Overrides, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall, InferCall, Outputs
from serving.gateway.admission.admission import Counts, LocalCounts
from serving.gateway.observability import background_tasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.plan_runner import CallRunner
from serving.gateway.triton_client import endpoint, pool, retry_policy
from serving.gateway.triton_client.endpoint import Share
from serving.gateway.triton_client.pool import Work
from serving.gateway.triton_client.retry_policy import KEEP_S, MAX_CALLS, Quarantine
from serving.gateway.triton_client.triton_inference import GONE, RestartWatcher, TritonInference
from serving.ports import free_ports
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.conftest import FakeInference, Gateway, MakeGateway, pool_of

MODEL = "tiny"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POLL_S", 0.001)
    monkeypatch.setattr(endpoint, "HOLD_S", 0.0)
    monkeypatch.setattr(retry_policy, "ALONE_S", 0.05)


def call(number: int, **options: object) -> GenerateCall:
    return GenerateCall(MODEL, 1, {"prompt_ids": np.array([number])}, Overrides(**options))


def lost(**attributes: object) -> Unavailable:
    error = Unavailable(f"{MODEL} was restarted")
    for name, value in {"is_loss": True, **attributes}.items():
        setattr(error, name, value)
    return error


class Others(LocalCounts):
    """Counts beside other processes of the gateway that have requests."""

    def requests_elsewhere(self) -> int:
        return 1


def runner(
    inference: FakeInference, timeout_s: float | None, counts: Counts | None = None
) -> CallRunner:
    """Runs calls on one server, which they wait for so long."""
    metrics, settings = Metrics(), GatewaySettings(recovery_timeout=timeout_s)
    return CallRunner(pool_of(inference, metrics), settings, metrics, counts or LocalCounts())


class Process:
    """A model's process: some calls end it, and all that are in flight with it."""

    def __init__(self, *, poisonous: frozenset[int] = frozenset(), deaths: int = 0) -> None:
        self.inference = FakeInference()
        self.runner = runner(self.inference, 5.0)
        self.poisonous = poisonous
        self.deaths = deaths
        """Ends to come that no call is the reason of."""
        self.ended = 0
        self.running: dict[int, asyncio.Future[str]] = {}
        self.attempts: list[int] = []

    def attempt(self, number: int) -> Work[str]:
        async def attempt(share: Share, left_s: float) -> str:
            self.attempts.append(number)
            self.running[number] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.005, self._serve, number)
            try:
                return await self.running[number]
            finally:
                self.running.pop(number, None)

        return attempt

    def _serve(self, number: int) -> None:
        if number not in self.running or self.running[number].done():
            return  # it was lost
        if number in self.poisonous or self.deaths:
            self.deaths -= bool(self.deaths)
            self.ended += 1
            for other in self.running.values():
                if not other.done():
                    other.set_exception(lost())
        else:
            self.running[number].set_result(f"answer {number}")

    async def answer(self, number: int) -> str:
        try:
            return await self.runner.run(call(number), 5.0, self.attempt(number))
        except Quarantined:
            return "quarantined"
        except Unavailable:
            return "unavailable"


async def test_nothing_is_sent_to_a_model_that_is_known_to_be_down() -> None:
    process = Process(deaths=1)
    process.inference.unloaded.add(MODEL)
    first = asyncio.create_task(process.answer(1))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(process.answer(2))
    await asyncio.sleep(0.02)
    assert process.attempts == [1]
    process.inference.unloaded.clear()
    assert [await first, await second] == ["answer 1", "answer 2"]


async def test_lost_calls_that_were_joined_are_apart_again_once_their_model_is_up() -> None:
    process = Process(deaths=1)
    process.inference.unloaded.add(MODEL)
    work = asyncio.create_task(process.runner.run(call(1), 5.0, process.attempt(1), is_batch=True))
    await asyncio.sleep(0.02)
    assert not work.done()
    process.inference.unloaded.clear()
    with pytest.raises(Unavailable):
        await work


async def test_refused_calls_wait_however_often_and_are_not_blamed() -> None:
    process, refusals = Process(), [lost(is_loss=False) for _ in range(9)]

    async def attempt(share: Share, left_s: float) -> str:
        if refusals:
            raise refusals.pop()
        return "answer"

    assert await process.runner.run(call(1), 5.0, attempt) == "answer"


async def test_model_that_refuses_for_too_long_is_given_up() -> None:
    calls = runner(FakeInference(), 0.05)

    async def attempt(share: Share, left_s: float) -> str:
        raise lost(is_loss=False)

    async with asyncio.timeout(2):
        with pytest.raises(Unavailable):
            await calls.run(call(1), 60.0, attempt)


async def test_call_of_a_version_that_was_replaced_fails_at_once() -> None:
    process = Process(deaths=1)
    process.inference.retired.add((MODEL, 1))
    process.inference.served[MODEL] = 2
    async with asyncio.timeout(1):
        with pytest.raises(Unavailable) as caught:
            await process.runner.run(call(1), 5.0, process.attempt(1))
    assert caught.value.is_not_loaded, "its request may be planned again"


async def test_each_wait_ends_with_its_own_deadline() -> None:
    process = Process(deaths=1)
    process.runner = runner(process.inference, None)
    process.inference.unloaded.add(MODEL)
    later = asyncio.create_task(process.runner.run(call(2), 60.0, process.attempt(2)))
    with pytest.raises(Unavailable):
        await process.runner.run(call(1), 0.05, process.attempt(1))
    process.inference.unloaded.clear()
    assert await later == "answer 2"


async def test_model_is_not_polled_when_no_call_waits_for_it() -> None:
    process = Process(deaths=1)
    process.runner = runner(process.inference, None)
    process.inference.unloaded.add(MODEL)
    with pytest.raises(Unavailable):
        await process.runner.run(call(1), 0.05, process.attempt(1))
    assert not process.runner.pool.is_awaited(call(1))
    process.inference.unloaded.clear()
    assert await process.runner.run(call(1), 5.0, process.attempt(1)) == "answer 1"


async def test_call_that_ends_its_process_twice_alone_is_refused_by_name() -> None:
    process = Process(poisonous=frozenset({7}))
    assert await process.answer(7) == "quarantined"
    assert process.attempts == [7, 7]
    assert await process.answer(7) == "quarantined"
    assert process.attempts == [7, 7], "it reaches no process any more"
    assert await process.answer(8) == "answer 8"


async def test_poisonous_call_among_others_is_found_and_the_others_are_answered() -> None:
    process = Process(poisonous=frozenset({7}))
    answers = await asyncio.gather(*map(process.answer, range(16)))
    assert answers == ["quarantined" if number == 7 else f"answer {number}" for number in range(16)]
    assert process.ended == 3, "with all, with all again, and alone"


async def test_calls_in_flight_together_are_not_blamed_for_ends_of_another_reason() -> None:
    process = Process(deaths=2)
    answers = await asyncio.gather(*map(process.answer, range(8)))
    assert answers == [f"answer {number}" for number in range(8)]


async def test_no_call_is_blamed_while_another_process_of_the_gateway_has_requests() -> None:
    process = Process(poisonous=frozenset({7}))
    process.runner = runner(process.inference, 5.0, Others())
    assert await process.answer(7) == "unavailable"
    assert process.attempts == [7, 7, 7], "sent again twice"


async def test_suspects_are_sent_one_after_the_other() -> None:
    process, most = Process(deaths=2), 0
    work = [asyncio.create_task(process.answer(number)) for number in range(6)]
    while not all(task.done() for task in work):
        await asyncio.sleep(0.001)
        if process.ended == 2 and len(process.attempts) > 12:
            most = max(most, len(process.running))
    assert most == 1


def test_quarantine_ends_and_is_of_the_content() -> None:
    now_s = 0.0
    quarantine = Quarantine(lambda: now_s)
    quarantine.add(call(1, temperature=0.5))
    quarantine.check(call(2, temperature=0.5))
    quarantine.check(call(1, temperature=0.7))
    with pytest.raises(Quarantined, match=rf"process of {MODEL} ended"):
        quarantine.check(call(1, temperature=0.5, seed=4, priority=3, generated_ids=(5,)))
    now_s = KEEP_S
    quarantine.check(call(1, temperature=0.5))


def test_quarantine_is_bounded() -> None:
    quarantine = Quarantine(lambda: 0.0)
    for number in range(MAX_CALLS + 1):
        quarantine.add(call(number))
    quarantine.check(call(0))
    with pytest.raises(Quarantined):
        quarantine.check(call(1))


async def settle() -> None:
    await asyncio.sleep(0.02)


async def test_call_that_began_after_the_restart_runs_on() -> None:
    incarnation, answer = ["0"], asyncio.Event()

    async def read(model: str) -> str:
        return incarnation[-1]

    watcher = RestartWatcher(read, poll_s=0.002)
    watcher.note(MODEL, "0")
    older = asyncio.create_task(watcher.guard(MODEL, answer.wait()))
    await settle()
    watcher.note(MODEL, "1")  # by another reader, before the watcher's next poll
    newer = asyncio.create_task(watcher.guard(MODEL, answer.wait()))
    await asyncio.sleep(0)
    incarnation.append("1")
    with pytest.raises(Unavailable) as caught:
        await older
    assert caught.value.is_loss
    await settle()
    assert not newer.done()
    answer.set()
    assert await newer is True


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), RuntimeError("a bug")])
async def test_a_poll_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    failures = [failure]

    async def read(model: str) -> str:
        if failures:
            raise failures.pop()
        return GONE

    watcher = RestartWatcher(read, poll_s=0.002)
    running = asyncio.create_task(watcher.guard(MODEL, asyncio.Event().wait()))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(running, 5)


class NameServer(asyncio.DatagramProtocol):
    """Answers every query for an address with `address`, all others with nothing."""

    address = "127.0.0.2"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        question, is_address = data[12:end], data[end - 4 : end - 2] == b"\0\1"
        counts = struct.pack("!HHHH", 1, int(is_address), 0, 0)
        answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(self.address)
        reply = data[:2] + b"\x81\x80" + counts + question + (answer if is_address else b"")
        self._transport.sendto(reply, addr)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)


async def serve(address: str, port: int) -> grpc.aio.Server:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    server.add_insecure_port(f"{address}:{port}")
    await server.start()
    return server


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, int]]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    yield protocol, transport.get_extra_info("sockname")[1]
    transport.close()


async def test_proxies_of_the_environment_do_not_reach_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    [port] = free_ports("127.0.0.1", {"gRPC": 0}).values()
    server = await serve("127.0.0.1", port)
    inference = TritonInference(f"127.0.0.1:{port}")
    try:
        assert await inference.is_ready("m", 1)
        stream = inference._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            service_pb2.ModelReadyRequest.SerializeToString,
            service_pb2.ModelReadyResponse.FromString,
        )
        assert (await stream(service_pb2.ModelReadyRequest(name="m"), timeout=5)).ready
    finally:
        await inference.close()
        await server.stop(None)


async def test_server_that_returns_under_another_address_is_found_within_ten_seconds(
    names: tuple[NameServer, int],
) -> None:
    name_server, name_port = names
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    first = await serve("127.0.0.2", port)
    inference = TritonInference(f"dns://127.0.0.1:{name_port}/triton.test:{port}")
    try:
        assert await inference.is_ready("m", 1)
        await first.stop(None)
        assert not await inference.is_ready("m", 1)
        name_server.address = "127.0.0.3"
        second = await serve("127.0.0.3", port)
        async with asyncio.timeout(10):
            while not await inference.is_ready("m", 1):
                await asyncio.sleep(0.1)
        await second.stop(None)
    finally:
        await inference.close()


PROMPT = {"prompts": "one two three four five six", "stream": True}


class Losing(FakeInference):
    """Loses a stream after two tokens, `losses` times; goes on behind the tokens of a call."""

    losses = 2
    sent = 0

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        behind = len(call.options.generated_ids or ())
        async for item in super().stream(call, timeout_s):
            if isinstance(item, Finished):
                yield item
                return
            if behind:
                behind -= 1
                continue
            yield item
            self.sent = self.sent % 2 + 1
            if self.sent == 2 and self.losses:
                self.losses -= 1
                raise lost(retry_after_s=1)

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        whole = await super().generate(call, timeout_s)
        return self._or_lost(whole)

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        outputs = await super().infer(call, timeout_s)
        return self._or_lost(outputs) if call.rows > 1 else outputs

    def _or_lost(self, result: Any) -> Any:
        if self.losses:
            self.losses -= 1
            raise lost(retry_after_s=1)
        return result


@pytest.fixture
def gateway(make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr("tests.serving.gateway.conftest.FakeInference", Losing)
    return make_gateway(recovery_timeout=5)


def joined(body: str) -> tuple[str, list[object], dict[str, Any]]:
    """The text of a stream, its log-probabilities, and the rest of its last chunk."""
    assert body.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line) for line in re.findall(r"^data: (\{.*\})$", body, re.M)]
    text = "".join(one.pop("text", "") for one in chunks)
    records = [record for one in chunks for record in one.pop("logprobs", [])]
    return text, records, chunks[-1]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7}, {"logprobs": 2}])
async def test_client_of_a_stream_notices_nothing(
    gateway: Gateway, fields: dict[str, object]
) -> None:
    assert isinstance(gateway.inference, Losing)
    gateway.inference.losses = 0
    wanted = await gateway.http.post("/v1/generate", json={**PROMPT, **fields})
    gateway.inference.calls.clear()
    gateway.inference.losses, gateway.inference.sent = 1, 0
    found = await gateway.http.post("/v1/generate", json={**PROMPT, **fields})
    assert joined(found.text) == joined(wanted.text)
    first, second = gateway.inference.calls
    assert isinstance(first, GenerateCall)
    assert isinstance(second, GenerateCall)
    whole = tuple(first.inputs["prompt_ids"].tolist())  # the fake repeats its prompt
    assert first.options.generated_ids is None
    assert second.options.generated_ids == whole[:2]
    assert first.options.seed is not None, "the sample must be the same one"
    assert second.options == first.options.model_copy(update={"generated_ids": whole[:2]})


@pytest.mark.parametrize("fields", [{"n": 2, "num_beams": 2}, {"stop": ["zz"]}, {}])
async def test_whole_responses_begin_anew(gateway: Gateway, fields: dict[str, object]) -> None:
    assert isinstance(gateway.inference, Losing)
    body = {"prompts": "one two three", **fields}
    gateway.inference.losses = 0
    wanted = await gateway.http.post("/v1/generate", json=body)
    gateway.inference.losses, gateway.inference.sent = 1, 0
    found = await gateway.post("/v1/generate", json=body)
    assert found.json()["data"] == wanted.json()["data"]


async def test_joined_calls_are_repeated_one_by_one(gateway: Gateway) -> None:
    assert isinstance(gateway.inference, Losing)
    bodies = [{"texts": f"text {number}"} for number in range(12)]
    gateway.inference.losses = 1
    found = await asyncio.gather(*(gateway.http.post("/v1/embed", json=body) for body in bodies))
    assert [one.status_code for one in found] == [200] * 12
    rows = [one.rows for one in gateway.inference.calls if isinstance(one, InferCall)]
    assert max(rows) > 1
    assert rows.count(1) >= max(rows)
    vectors = [one.json()["data"][0]["embedding"] for one in found]
    alone = [await gateway.http.post("/v1/embed", json=body) for body in bodies]  # from the cache
    assert vectors == [one.json()["data"][0]["embedding"] for one in alone]


async def test_stream_that_ends_its_process_repeatedly_is_refused(gateway: Gateway) -> None:
    assert isinstance(gateway.inference, Losing)
    gateway.inference.losses = 99
    long = {**PROMPT, "prompts": "one two three four five six one two three four five"}
    found = await gateway.http.post("/v1/generate", json=long)
    assert '"type":"quarantined"' in found.text
    assert 99 - gateway.inference.losses == retry_policy.MAX_INTERRUPTIONS + 2
    again = await gateway.post("/v1/generate", json=long, status=422)
    assert again.json()["error"]["type"] == "quarantined"
    await gateway.post("/v1/generate", json={**PROMPT, "prompts": "seven"})
