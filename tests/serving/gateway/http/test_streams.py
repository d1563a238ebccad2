"""Streams over HTTP: events, failures before and after the headers, disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference.errors import Overloaded, Unavailable
from serving.gateway.requests.plan_runner import LONG_PRIORITY, STREAM_PRIORITY
from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import RED, Gateway, MakeGateway, error_of
from tests.serving.waiting import until
from triptych.messages import Chunk, TokenLogprob, TopToken, Usage
from triptych.tasks.generate import GenerateResponse

PROMPT = {"prompts": "one two three", "stream": True}
BODIES = {
    "generate": PROMPT,
    "translate": {"texts": "one two three", "num_beams": 1, "stream": True},
    "caption": {"images": RED, "prompt": "a", "num_beams": 1, "stream": True},
}


def events(body: str) -> list[str]:
    """Data of each event; an error's event is named."""
    found = []
    assert body.endswith("\n\n")
    for event in body.removesuffix("\n\n").split("\n\n"):
        *names, data = event.split("\n")
        assert data.startswith("data: ")
        assert names in ([], ["event: error"])
        assert bool(names) == ('"error"' in data and '"index"' not in data)
        found.append(data.removeprefix("data: "))
    return found


def pieces(body: str) -> list[Chunk]:
    """The pieces of a stream that came to its end."""
    *told, last = events(body)
    assert last == "[DONE]"
    return [Chunk.model_validate_json(data) for data in told]


async def stream(gateway: Gateway, task: str, **fields: object) -> list[Chunk]:
    response = await gateway.post(f"/v1/{task}", json={**BODIES[task], **fields})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return pieces(response.text)


class Reader:
    """A client on the ASGI interface that sees each message as it is sent, and may disconnect."""

    def __init__(self, gateway: Gateway, task: str, **fields: object) -> None:
        body = json.dumps({**BODIES[task], **fields}).encode()
        self._incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
        self._gateway = gateway
        self._path = f"/v1/{task}"
        self._leave = asyncio.Event()
        self.sent: list[dict] = []
        self.is_reading = asyncio.Event()
        self.is_reading.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["Reader"]:
        scope = {
            "type": "http", "method": "POST", "path": self._path,
            "raw_path": self._path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "http_version": "1.1", "scheme": "http", "server": ("gateway", 80), "client": ("a", 1),
        }  # fmt: skip
        request = asyncio.ensure_future(self._gateway.app(scope, self._receive, self._send))
        try:
            yield self
        finally:
            self._leave.set()
            await request

    @property
    def bodies(self) -> list[str]:
        return [
            message["body"].decode()
            for message in self.sent
            if message["type"] == "http.response.body" and message["body"]
        ]

    async def _receive(self) -> dict:
        message = next(self._incoming, None)
        if message is None:
            await self._leave.wait()
            return {"type": "http.disconnect"}
        return message

    async def _send(self, message: dict) -> None:
        self.sent.append(message)
        await self.is_reading.wait()


async def test_token_is_sent_before_the_next_is_generated(gateway: Gateway) -> None:
    gateway.inference.steps = asyncio.Semaphore(0)
    async with Reader(gateway, "generate").reading() as reader:
        await until(lambda: gateway.inference.running == 1)
        assert reader.sent == []  # nothing is promised yet
        told = []
        for word in ("one", " two", " three"):
            gateway.inference.steps.release()
            told.append(f'data: {{"index":0,"text":"{word}"}}\n\n')
            await until(lambda: "".join(reader.bodies) == "".join(told))
        gateway.inference.steps.release()
        await until(lambda: reader.bodies[-1] == "data: [DONE]\n\n")
    start = reader.sent[0]
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    headers = dict(start["headers"])
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-request-id"]


async def test_tokens_that_are_ready_together_share_an_event(gateway: Gateway) -> None:
    async with Reader(gateway, "generate").reading() as reader:
        await until(lambda: reader.bodies and reader.bodies[-1] == "data: [DONE]\n\n")
    assert len(reader.bodies) == 2
    (piece, done) = events("".join(reader.bodies))
    assert Chunk.model_validate_json(piece).text == "one two three"
    assert done == "[DONE]"


@pytest.mark.parametrize("body", [PROMPT, {"prompts": "a"}])
async def test_headers_break_down_the_time_to_the_answer_or_its_first_chunk(
    gateway: Gateway, body: dict[str, object]
) -> None:
    response = await gateway.http.post("/v1/generate", json=body)
    for name in ("x-tokenization-time", "x-queue-time", "x-inference-time"):
        assert float(response.headers[name]) >= 0


async def test_several_prompts_stream_concurrently(gateway: Gateway) -> None:
    gateway.inference.steps = asyncio.Semaphore(0)
    async with Reader(gateway, "generate", prompts=["a b", "c d"]).reading() as reader:
        await until(lambda: gateway.inference.running == 2)
        for _ in range(2):
            gateway.inference.steps.release()
            gateway.inference.steps.release()
            await until(lambda: gateway.inference.steps._value == 0)
        for _ in range(2):
            gateway.inference.steps.release()
        await until(lambda: reader.bodies and reader.bodies[-1].endswith("data: [DONE]\n\n"))
    told = pieces("".join(reader.bodies))
    texts = {0: "", 1: ""}
    for piece in told:
        texts[piece.index] += piece.text
    assert texts == {0: "a b", 1: "c d"}
    first_ends = next(n for n, piece in enumerate(told) if piece.finish_reason)
    assert {piece.index for piece in told[:first_ends]} == {0, 1}
    assert told[-1].usage == Usage(prompt_tokens=6, completion_tokens=6)


async def test_multipart_request_streams(gateway: Gateway) -> None:
    files = [("images", ("a.png", image_file("red")))]
    data = {"stream": "true", "num_beams": "1"}
    response = await gateway.http.post("/v1/caption", files=files, data=data)
    assert "".join(piece.text for piece in pieces(response.text)) == "picture"


async def test_log_probabilities_accompany_their_tokens(gateway: Gateway) -> None:
    told = await stream(gateway, "generate", prompts="one", logprobs=1)
    entries = [entry for piece in told for entry in piece.logprobs or ()]
    top = [TopToken(token="one", logprob=-0.25, token_id=4, bytes=list(b"one"))]
    (one,) = gateway.service.catalog.find("tiny-generate").tokenizer.encode(
        "one", add_special_tokens=False
    )
    assert entries == [
        TokenLogprob(
            token="one", logprob=-0.25, top=top, token_id=one, bytes=list(b"one"), text_offset=0
        ),
        TokenLogprob(token="</s>", logprob=-0.25, top=top, token_id=1, text_offset=3),
    ]


async def test_a_stop_string_ends_the_call_at_once(gateway: Gateway) -> None:
    gateway.inference.steps = asyncio.Semaphore(2)  # the third token is never made
    told = await stream(gateway, "generate", stop=["wo", "x"])
    assert "".join(piece.text for piece in told) == "one t"
    assert told[-1].finish_reason == "stop"
    assert told[-1].usage == Usage(prompt_tokens=4, completion_tokens=2)
    assert (gateway.inference.cancelled, gateway.inference.running) == (1, 0)


async def test_a_stop_string_ends_a_whole_answer_at_once_too(gateway: Gateway) -> None:
    gateway.inference.steps = asyncio.Semaphore(2)
    body = {"prompts": "one two three", "stop": "two", "logprobs": 0}
    response = await gateway.http.post("/v1/generate", json=body)
    answer = GenerateResponse.model_validate_json(response.content)
    (item,) = answer.data
    assert (item.text, item.finish_reason, item.score) == ("one ", "stop", -0.25)
    assert [entry.token for entry in item.logprobs] == ["one", "two"]
    assert answer.usage == Usage(prompt_tokens=4, completion_tokens=2)
    assert (gateway.inference.cancelled, gateway.inference.running) == (1, 0)


async def test_without_a_stop_string_calls_do_not_stream(gateway: Gateway) -> None:
    gateway.inference.steps = asyncio.Semaphore(0)
    response = await gateway.http.post("/v1/generate", json={"prompts": "one"})
    assert response.json()["data"][0] == {
        "index": 0, "text": "one", "finish_reason": "stop", "score": -0.5,
    }  # fmt: skip


async def test_streams_have_priority(gateway: Gateway) -> None:
    await stream(gateway, "generate")
    await gateway.http.post("/v1/generate", json={"prompts": "one"})
    first, second = gateway.inference.calls
    assert first.options.priority == STREAM_PRIORITY > second.options.priority == 0


async def test_long_requests_have_less_priority(gateway: Gateway) -> None:
    for number in (8, 9):
        await gateway.http.post("/v1/generate", json={"prompts": ["one"] * number})
    priorities = [call.options.priority for call in gateway.inference.calls]
    assert priorities == [0] * 8 + [LONG_PRIORITY] * 9
    await stream(gateway, "generate", prompts=["one"] * 9)
    assert gateway.inference.calls[-1].options.priority == LONG_PRIORITY + STREAM_PRIORITY


class TestBeforeTheHeaders:
    """A failure before the first chunk has a status."""

    async def test_an_unknown_model_is_404(self, gateway: Gateway) -> None:
        await gateway.post("/v1/generate", json={**PROMPT, "model": "missing"}, status=404)

    @pytest.mark.parametrize(
        "limit", [{"max_concurrent_requests": 1}, {"max_concurrent_tokens": 6}]
    )
    async def test_what_is_over_a_limit_is_429(
        self, make_gateway: MakeGateway, limit: dict[str, int]
    ) -> None:
        gateway = make_gateway(**limit)
        gateway.inference.steps = asyncio.Semaphore(1)
        async with Reader(gateway, "generate").reading() as reader:
            await until(lambda: reader.bodies)
            refused = await gateway.http.post("/v1/generate", json=PROMPT)
            assert (refused.status_code, error_of(refused)["type"]) == (429, "overloaded")
        assert (await stream(make_gateway(), "generate"))[-1].finish_reason

    async def test_a_refusal_of_triton_is_its_status(self, gateway: Gateway) -> None:
        gateway.inference.failures["tiny-generate"] = Overloaded("busy", retry_after_s=2)
        response = await gateway.http.post("/v1/generate", json={**PROMPT, "prompts": ["a", "b"]})
        assert (response.status_code, error_of(response)["type"]) == (429, "overloaded")
        assert response.headers["retry-after"] == "2"

    async def test_no_chunk_in_time_is_504(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(request_timeout=0.05)
        gateway.inference.steps = asyncio.Semaphore(0)
        await gateway.post("/v1/generate", json=PROMPT, status=504)
        # On a busy machine the time may be up before the call was made.
        assert gateway.inference.cancelled == len(gateway.inference.calls)
        assert gateway.inference.running == 0


class TestAfterTheHeaders:
    """Chunks sent before a failure stand; it is an event, and the end without [DONE]."""

    async def test_a_failure_is_an_error_event(self, gateway: Gateway) -> None:
        gateway.inference.breaks[2] = Unavailable("the model was restarted")
        response = await gateway.post("/v1/generate", json=PROMPT)
        *told, last = events(response.text)
        assert "".join(json.loads(data)["text"] for data in told) == "one two"
        assert json.loads(last) == {
            "error": {"type": "unavailable", "message": "the model was restarted"}
        }
        text = (await gateway.http.get("/metrics")).text
        assert 'request_failure_total{route="/v1/generate",type="unavailable"} 1.0' in text

    async def test_one_prompts_failure_leaves_the_others_alone(self, gateway: Gateway) -> None:
        gateway.inference.breaks[2] = Unavailable("down")
        told = await stream(gateway, "generate", prompts=["one two three", "a"])
        ends = {piece.index: piece for piece in told if piece.finish_reason or piece.error}
        assert ends[0].error.type == "unavailable"
        assert ends[1].finish_reason == "stop"
        assert told[-1].usage == Usage(prompt_tokens=2, completion_tokens=2)

    async def test_a_bad_prompt_leaves_the_others_alone(self, gateway: Gateway) -> None:
        told = await stream(gateway, "generate", prompts=["x " * 20, "a"])
        assert (told[0].index, told[0].error.type) == (0, "too_long")
        assert "".join(piece.text for piece in told) == "a"

    async def test_the_deadline_is_an_error_event(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(request_timeout=1.0)
        gateway.inference.steps = asyncio.Semaphore(1)
        response = await gateway.http.post("/v1/generate", json=PROMPT)
        first, last = events(response.text)
        assert json.loads(first) == {"index": 0, "text": "one"}
        assert json.loads(last)["error"]["type"] == "deadline_exceeded"
        assert (gateway.inference.cancelled, gateway.inference.running) == (1, 0)

    async def test_a_bug_is_an_error_event_without_its_text(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        gateway.inference.breaks[1] = ValueError("secret")
        response = await gateway.http.post("/v1/generate", json=PROMPT)
        assert json.loads(events(response.text)[-1])["error"]["type"] == "internal"
        assert "secret" not in response.text
        assert "secret" in caplog.text


class TestLeaving:
    """A reader that leaves ends the work, wherever it is."""

    async def test_while_tokens_arrive(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(max_concurrent_requests=1)
        gateway.inference.steps = asyncio.Semaphore(1)
        async with Reader(gateway, "generate", prompts=["one two", "three"]).reading() as reader:
            await until(lambda: reader.bodies)
            assert gateway.inference.running == 2
        assert (gateway.inference.cancelled, gateway.inference.running) == (2, 0)
        assert "data: [DONE]\n\n" not in reader.bodies
        text = (await gateway.http.get("/metrics")).text
        assert 'request_failure_total{route="/v1/generate",type="cancelled"} 1.0' in text
        gateway.inference.steps = None
        assert (await stream(gateway, "generate"))[-1].finish_reason == "stop"

    async def test_before_the_first_token(self, gateway: Gateway) -> None:
        gateway.inference.steps = asyncio.Semaphore(0)
        async with Reader(gateway, "translate").reading() as reader:
            await until(lambda: gateway.inference.running == 1)
        assert (gateway.inference.cancelled, gateway.inference.running) == (1, 0)
        assert reader.sent == []

    async def test_while_waiting_for_a_turn(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(max_concurrent_sequences=1)
        gateway.inference.steps = asyncio.Semaphore(1)
        async with Reader(gateway, "generate").reading() as first:
            await until(lambda: first.bodies)
            async with Reader(gateway, "generate").reading() as second:
                await until(lambda: "triptych_queue_size 1.0" in gateway.exposed)
            assert second.sent == []
            assert "triptych_queue_size 0.0" in gateway.exposed
        assert gateway.inference.running == 0
        assert "triptych_tokens_in_flight 0.0" in gateway.exposed

    async def test_a_slow_reader_keeps_no_slot_busy(self, gateway: Gateway) -> None:
        async with Reader(gateway, "generate").reading() as reader:
            reader.is_reading.clear()
            await until(lambda: reader.sent)
            await until(lambda: "triptych_tokens_in_flight 0.0" in gateway.exposed)
            assert gateway.inference.running == 0
            assert len(reader.sent) == 1
            reader.is_reading.set()
            await until(lambda: reader.bodies and reader.bodies[-1] == "data: [DONE]\n\n")


async def test_time_to_first_token_and_between_tokens_are_measured(gateway: Gateway) -> None:
    await stream(gateway, "generate", prompts=["one two three", "four"])
    await gateway.http.post("/v1/generate", json={"prompts": "a b c", "stop": "c"})
    await gateway.http.post("/v1/generate", json={"prompts": "a b c"})
    samples, route = gateway.samples, ("route", "/v1/generate")
    assert samples["triptych_request_time_to_first_token_seconds_count", route] == 2
    assert samples["triptych_request_inter_token_seconds_count", route] == 3 + 1 + 2
    assert samples["triptych_request_inference_duration_seconds_count", route] == 3
