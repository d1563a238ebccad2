"""`TritonInference` against an in-process server with Triton's protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from inference.bundle.manifest import Role
from inference.engine.codec import ABORT
from inference.errors import (
    DeadlineExceeded,
    InternalError,
    Overloaded,
    ServingError,
    TooLong,
    Unavailable,
)
from inference.generation import Hypothesis, Overrides, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall, InferCall
from serving.gateway.triton_client.stream_pool import MAX_SEQUENCES
from serving.gateway.triton_client.triton_inference import Liveness, TritonInference, from_triton
from tests.serving.waiting import until

TYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "object": "BYTES", "uint8": "UINT8"}


def response(**arrays: np.ndarray) -> service_pb2.ModelInferResponse:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="3")
    if "sequences" in arrays:
        answer.parameters["triton_final_response"].bool_param = True
    for name, array in arrays.items():
        kind = TYPES[str(array.dtype)]
        answer.outputs.add(name=name, datatype=kind, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if kind == "BYTES" else array.tobytes()
        answer.raw_output_contents.append(raw)
    return answer


def ended(request_id: str) -> service_pb2.ModelStreamInferResponse:
    answer = service_pb2.ModelInferResponse(id=request_id)
    answer.parameters["triton_final_response"].bool_param = True
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def tensors(request: service_pb2.ModelInferRequest) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Remembers requests; answers what the test put there."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[service_pb2.ModelInferRequest] = []
        self.metadata: list[dict[str, str]] = []
        """Of each call."""
        self.stream: list[service_pb2.ModelStreamInferResponse] = []
        self.answer = service_pb2.ModelInferResponse()
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False
        self.is_deaf = False
        self.left = asyncio.Event()
        self.streams = 0
        self.incarnation: str | None = "0"
        self.looked_at = asyncio.Event()
        self.is_stopping = False

    async def ModelInfer(self, request, context):  # noqa: N802
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        if self.refusal:
            await context.abort(*self.refusal)
        if self.hangs:
            await asyncio.sleep(60)
        return self.answer

    async def ModelStreamInfer(self, requests, context):  # noqa: N802
        self.streams += 1
        self.metadata.append(dict(context.invocation_metadata()))
        async for request in requests:
            self.requests.append(request)
            if self.refusal:
                await context.abort(*self.refusal)
            if ABORT in request.parameters:
                self.left.set()
                for _ in range(2):  # the sequence ends, and the request that called it off
                    yield ended(request.id)
                continue
            for answer in self.stream:
                answer.infer_response.id = request.id
                yield answer
            if self.is_deaf:
                await asyncio.sleep(60)
            if not (self.stream or self.hangs):
                return

    async def ModelConfig(self, request, context):  # noqa: N802
        self.looked_at.set()
        if self.incarnation is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model: it has no versions")
        answer = service_pb2.ModelConfigResponse()
        answer.config.parameters["incarnation"].string_value = self.incarnation
        return answer

    async def ServerLive(self, request, context):  # noqa: N802
        return service_pb2.ServerLiveResponse(live=not self.is_stopping)

    async def ModelReady(self, request, context):  # noqa: N802
        is_ready = (request.name, request.version) == ("m", "3")
        return service_pb2.ModelReadyResponse(ready=is_ready)


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    made = FakeTriton()
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(made, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield made
    await server.stop(0)


@pytest.fixture
async def inference(fake: FakeTriton) -> AsyncIterator[TritonInference]:
    made = TritonInference(fake.address)
    yield made
    await made.close()


SEQUENCE = GenerateCall(
    "m", 3, {"source_ids": np.array([5, 6, 1])}, Overrides(num_beams=2, num_return_sequences=2)
)
GREEDY = GenerateCall("m", 3, {"prompt_ids": np.array([5, 6])}, Overrides(num_beams=1))
BATCH = InferCall(
    "m",
    3,
    {"token_ids": np.ones((2, 8), np.int64), "lengths": np.array([3, 8], np.int32)},
    {"embedding": Role.EMBEDDING},
)
LAST = response(
    token_ids=np.zeros(0, np.int64),
    sequences=np.array([[7, 8, 1], [9, 1, -1]]),
    scores=np.array([-0.5, -1.25], np.float32),
    finish_reason=np.array([b"stop", b"length"], dtype=object),
    usage=np.array([3, 5], np.int32),
)


def told(*answers: service_pb2.ModelInferResponse) -> list[service_pb2.ModelStreamInferResponse]:
    return [service_pb2.ModelStreamInferResponse(infer_response=answer) for answer in answers]


async def test_sequence_is_collected(fake, inference) -> None:
    fake.stream = told(response(token_ids=np.array([7])), LAST)
    found = await inference.generate(SEQUENCE, 2.0)
    assert found.hypotheses == (
        Hypothesis((7, 8, 1), -0.5, "stop"),
        Hypothesis((9, 1), -1.25, "length"),
    )
    assert (found.prompt_tokens, found.generated_tokens) == (3, 5)
    (request,) = fake.requests
    assert (request.model_name, request.model_version) == ("m", "3")
    sent = tensors(request)
    assert sent["source_ids"] == ("INT64", [3], np.array([5, 6, 1]).tobytes())
    kind, shape, raw = sent["options"]
    assert (kind, shape) == ("BYTES", [1])
    options = Overrides.model_validate_json(raw[4:])
    assert options == SEQUENCE.options.model_copy(update={"deadline_ms": 2000})


async def test_one_number_a_row_is_sent_as_a_column(fake, inference) -> None:
    embedding = np.arange(4, dtype=np.float32).reshape(2, 2)
    fake.answer = response(embedding=embedding)
    outputs = await inference.infer(BATCH, 1.0)
    np.testing.assert_array_equal(outputs[Role.EMBEDDING], embedding)
    sent = tensors(fake.requests[0])
    assert sent["lengths"] == ("INT32", [2, 1], np.array([3, 8], np.int32).tobytes())
    assert sent["token_ids"][1] == [2, 8]
    assert [output.name for output in fake.requests[0].outputs] == ["embedding"]
    assert not inference._restarts._watchers, "a model without calls is watched"


async def test_error_in_the_stream_keeps_its_kind(fake, inference) -> None:
    error = "too_long: source_ids has 900 tokens"
    fake.stream = [service_pb2.ModelStreamInferResponse(error_message=error)]
    with pytest.raises(TooLong, match=r"^source_ids has 900 tokens$"):
        await inference.generate(SEQUENCE, 1.0)


async def test_stream_without_an_answer_is_unavailable(inference) -> None:
    with pytest.raises(Unavailable, match="ended without a response"):
        await inference.generate(SEQUENCE, 1.0)


async def test_missing_output_is_an_internal_error(fake, inference) -> None:
    fake.answer = response(other=np.zeros(1, np.float32))
    with pytest.raises(InternalError, match="without embedding"):
        await inference.infer(BATCH, 1.0)


def send(inference, call, timeout_s):
    work = inference.generate if isinstance(call, GenerateCall) else inference.infer
    return work(call, timeout_s)


async def begin(fake, inference, call=SEQUENCE):
    """A call that the server has received, and does not answer."""
    fake.hangs = True
    running = asyncio.create_task(send(inference, call, 30.0))
    await until(lambda: fake.requests)
    return running


@pytest.mark.parametrize("call", [SEQUENCE, BATCH], ids=["stream", "unary"])
async def test_no_response_in_time_is_a_deadline(fake, inference, call) -> None:
    fake.hangs = True
    with pytest.raises(DeadlineExceeded):
        await send(inference, call, 0.2)


async def test_cancelled_sequence_is_aborted_on_its_stream(fake, inference, monkeypatch) -> None:
    monkeypatch.setattr("serving.gateway.triton_client.stream_pool.UNUSED_S", 0.01)
    work = await begin(fake, inference)
    async with asyncio.timeout(5):
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await fake.left.wait()
        await until(lambda: not inference._streams.reading)
    asked, called_off = fake.requests
    assert called_off.parameters[ABORT].bool_param
    assert ABORT not in asked.parameters
    assert asked.id == called_off.id != ""


async def test_sequences_share_a_stream_that_closes_after_them(
    fake, inference, monkeypatch
) -> None:
    fake.stream = [service_pb2.ModelStreamInferResponse(infer_response=LAST)]
    await asyncio.gather(*(inference.generate(SEQUENCE, 5.0) for _ in range(3)))
    assert fake.streams == 1
    ((line,),) = inference._streams._streams.values()
    line.retire()
    async with asyncio.timeout(5):
        await line.reading
    await inference.generate(SEQUENCE, 5.0)
    assert fake.streams == 2
    assert len({request.id for request in fake.requests}) == 4
    assert not any(ABORT in request.parameters for request in fake.requests)


async def test_old_stream_takes_no_new_sequence_and_serves_its_own(
    fake, inference, monkeypatch
) -> None:
    running = await begin(fake, inference)
    async with asyncio.timeout(5):
        ((old,),) = inference._streams._streams.values()
        old.retire()
        fake.stream = told(LAST)
        await inference.generate(SEQUENCE, 5.0)
        assert fake.streams == 2
        assert not running.done()
        running.cancel()
        await old.reading
    assert fake.requests[-1].parameters[ABORT].bool_param


async def test_full_stream_is_joined_by_a_second(fake, inference) -> None:
    fake.hangs = True
    running = [
        asyncio.create_task(inference.generate(SEQUENCE, 30.0)) for _ in range(MAX_SEQUENCES + 1)
    ]
    await until(lambda: len(fake.requests) >= len(running))
    assert fake.streams == 2
    for work in running:
        work.cancel()
    await asyncio.wait(running)


async def test_error_of_one_sequence_does_not_affect_its_stream(fake, inference) -> None:
    running = await begin(fake, inference)
    async with asyncio.timeout(5):
        error = service_pb2.ModelStreamInferResponse(error_message="too_long: 900 tokens")
        fake.stream = [error]
        with pytest.raises(TooLong):
            await inference.generate(SEQUENCE, 5.0)
    assert fake.streams == 1
    assert not running.done()
    running.cancel()
    await asyncio.wait((running,))


async def test_broken_stream_fails_its_sequences(fake, inference) -> None:
    fake.hangs = True
    running = [asyncio.create_task(inference.generate(SEQUENCE, 30.0)) for _ in range(2)]
    async with asyncio.timeout(5):
        await until(lambda: len(fake.requests) >= 2)
        fake.refusal = (grpc.StatusCode.UNAVAILABLE, "the server goes")
        running.append(asyncio.create_task(inference.generate(SEQUENCE, 30.0)))
        await asyncio.wait(running)
    assert [type(work.exception()) for work in running] == [Unavailable] * 3
    fake.refusal, fake.stream = None, told(LAST)
    assert (await inference.generate(SEQUENCE, 5.0)).hypotheses


async def test_stream_to_a_dead_process_is_cancelled_after_a_timeout(
    fake, inference, monkeypatch
) -> None:
    monkeypatch.setattr("serving.gateway.triton_client.stream_pool.ABORT_TIMEOUT_S", 0.01)
    fake.stream = [service_pb2.ModelStreamInferResponse(infer_response=response())]
    fake.hangs = fake.is_deaf = True
    work = asyncio.create_task(inference.generate(SEQUENCE, 30.0))
    async with asyncio.timeout(5):
        await until(lambda: fake.requests)
        work.cancel()
        await until(lambda: not inference._streams.reading)


async def test_tokens_are_streamed_as_they_arrive(fake, inference) -> None:
    fake.stream = told(
        response(token_ids=np.array([7])),
        response(token_ids=np.array([8, 9])),
        response(
            token_ids=np.array([1]),
            sequences=np.array([[7, 8, 9, 1]]),
            scores=np.array([-0.5], np.float32),
            finish_reason=np.array([b"stop"], dtype=object),
            usage=np.array([3, 4], np.int32),
        ),
    )
    *pieces, whole = [event async for event in inference.stream(GREEDY, 2.0)]
    assert pieces == [TokenChunk((7,)), TokenChunk((8, 9)), TokenChunk((1,))]
    assert [(one.token_ids, one.finish_reason) for one in whole.hypotheses] == [
        ((7, 8, 9, 1), "stop")
    ]
    _, _, raw = tensors(fake.requests[0])["options"]
    sent = Overrides.model_validate_json(raw[4:])
    assert (sent.stream, sent.deadline_ms) == (True, 2000)


async def test_log_probabilities_accompany_their_tokens(fake, inference) -> None:
    fake.stream = told(
        response(
            token_ids=np.array([7, 8]),
            log_probs=np.array([[-0.5, -0.25]], np.float32),
            top_ids=np.array([[[7, 9], [8, -1]]]),
            top_log_probs=np.array([[[-0.5, -1.0], [-0.25, 0.0]]], np.float32),
        ),
        response(  # the last tells of all tokens, of which it brings one
            token_ids=np.array([1]),
            sequences=np.array([[7, 8, 1]]),
            scores=np.array([-0.5], np.float32),
            finish_reason=np.array([b"stop"], dtype=object),
            usage=np.array([3, 3], np.int32),
            log_probs=np.array([[-0.5, -0.25, -2.0]], np.float32),
            top_ids=np.array([[[7, 9], [8, -1], [1, 4]]]),
            top_log_probs=np.array([[[-0.5, -1.0], [-0.25, 0.0], [-2.0, -4.0]]], np.float32),
        ),
    )
    first, second, whole = [event async for event in inference.stream(GREEDY, 2.0)]
    assert first == TokenChunk((7, 8), (-0.5, -0.25), (((7, -0.5), (9, -1.0)), ((8, -0.25),)))
    assert second == TokenChunk((1,), (-2.0,), (((1, -2.0), (4, -4.0)),))
    assert whole.best.log_probs == (-0.5, -0.25, -2.0)
    assert whole.best.top == first.top + second.top


async def test_every_hypothesis_has_its_own_length(fake, inference) -> None:
    extra = response(
        log_probs=np.array([[-0.5, -0.5, -0.5], [-1, -1, 0]], np.float32),
        top_ids=np.zeros((2, 3, 0), np.int64),
        top_log_probs=np.zeros((2, 3, 0), np.float32),
        alignment=np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    )
    answer = service_pb2.ModelInferResponse.FromString(LAST.SerializeToString())
    answer.MergeFrom(extra)
    fake.stream = told(answer)
    whole = await inference.generate(SEQUENCE, 2.0)
    first, second = whole.hypotheses
    assert (first.log_probs, second.log_probs) == ((-0.5, -0.5, -0.5), (-1.0, -1.0))
    assert (first.top, second.top) == (((), (), ()), ((), ()))
    np.testing.assert_array_equal(second.alignment, [[6, 7], [8, 9]])


async def test_closed_reader_aborts_its_sequence(fake, inference) -> None:
    fake.hangs = True
    fake.stream = told(response(token_ids=np.array([7])))
    async with asyncio.timeout(5):
        async with aclosing(inference.stream(GREEDY, 30.0)) as stream:
            assert await anext(stream) == TokenChunk((7,))
        await fake.left.wait()
    assert not inference._restarts._running["m"]


async def test_cancelled_reader_aborts_its_sequence(fake, inference) -> None:
    fake.hangs = True

    async def read() -> None:
        async with aclosing(inference.stream(GREEDY, 30.0)) as stream:
            async for _ in stream:
                raise AssertionError("nothing was told")

    reading = asyncio.create_task(read())
    async with asyncio.timeout(5):
        await until(lambda: fake.requests)
        reading.cancel()
        await fake.left.wait()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_broken_stream_keeps_the_tokens_sent(fake, inference) -> None:
    fake.stream = [
        *told(response(token_ids=np.array([7]))),
        service_pb2.ModelStreamInferResponse(error_message="unavailable: the engine stopped"),
    ]
    stream = inference.stream(GREEDY, 2.0)
    assert await anext(stream) == TokenChunk((7,))
    with pytest.raises(Unavailable, match="the engine stopped"):
        await anext(stream)


async def test_stream_of_a_replaced_process_fails(fake, inference, monkeypatch) -> None:
    monkeypatch.setattr(inference._restarts, "_poll_s", 0.01)
    fake.hangs = True
    fake.stream = told(response(token_ids=np.array([7])))
    stream = inference.stream(GREEDY, 30.0)
    async with asyncio.timeout(5):
        assert await anext(stream) == TokenChunk((7,))
        await fake.looked_at.wait()
        fake.incarnation = "1"
        with pytest.raises(Unavailable, match="was restarted"):
            await anext(stream)


@pytest.mark.parametrize("call", [SEQUENCE, BATCH], ids=["stream", "unary"])
@pytest.mark.parametrize("now", ["1", None], ids=["replaced", "unloaded"])
async def test_call_of_a_replaced_process_fails(fake, inference, call, now, monkeypatch) -> None:
    monkeypatch.setattr(inference._restarts, "_poll_s", 0.01)
    fake.hangs = True
    running = asyncio.create_task(send(inference, call, 30.0))
    async with asyncio.timeout(5):
        await fake.looked_at.wait()
        assert not running.done()
        fake.incarnation = now
        with pytest.raises(Unavailable, match="was restarted") as caught:
            await running
    assert caught.value.retry_after_s
    fake.hangs = False
    fake.answer = response(embedding=np.zeros((2, 2), np.float32))
    assert (await inference.infer(BATCH, 5.0))[Role.EMBEDDING].shape == (2, 2)


async def test_call_of_a_server_that_stops_may_finish(fake, inference, monkeypatch) -> None:
    monkeypatch.setattr(inference._restarts, "_poll_s", 0.001)
    fake.is_stopping, fake.hangs = True, True
    running = asyncio.create_task(inference.generate(SEQUENCE, 30.0))
    async with asyncio.timeout(5):
        await fake.looked_at.wait()
        fake.incarnation = None
        for _ in range(3):
            fake.looked_at.clear()
            await fake.looked_at.wait()
        assert not running.done()
        running.cancel()
        await asyncio.wait((running,))


@pytest.mark.parametrize("call", [SEQUENCE, BATCH], ids=["stream", "unary"])
async def test_refusal_of_the_call_is_mapped(fake, inference, call) -> None:
    fake.refusal = (grpc.StatusCode.UNAVAILABLE, "[request id: <x>] Exceeds maximum queue size")
    with pytest.raises(Overloaded):
        await send(inference, call, 5.0)


async def test_readiness_is_that_of_a_version(inference) -> None:
    assert await inference.is_ready("m", 3)
    assert not await inference.is_ready("m", 4)


async def test_no_server_is_unavailable_and_not_ready() -> None:
    inference = TritonInference("127.0.0.1:1")
    assert not await inference.is_ready("m", 3)
    for work in (inference.generate(SEQUENCE, 5.0), inference.infer(BATCH, 5.0)):
        with pytest.raises(Unavailable):
            await work
    await inference.close()


STOPPING = "[request id: 4] Server is stopping, scheduler for model has stopped accepting requests"
SAID = [
    ("overloaded: the queue is full", None, Overloaded),
    (
        "Failed to process the request(s) for model 'm_0', message: too_long: 9 tokens",
        None,
        TooLong,
    ),
    ("[request id: 4] invalid_request: num_beams", "StatusCode.INTERNAL", ServingError),
    ("Exceeds maximum queue size", "StatusCode.UNAVAILABLE", Overloaded),
    ("Request timeout expired", "StatusCode.UNAVAILABLE", DeadlineExceeded),
    ("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED", DeadlineExceeded),
    ("Request for unknown model: 'm' is not found", "StatusCode.NOT_FOUND", Unavailable),
    ("failed to connect to all addresses", "StatusCode.UNAVAILABLE", Unavailable),
    ("Internal error from Core", "StatusCode.INTERNAL", Unavailable),
    ("Stub process 'm_0_0' is not healthy.", None, Unavailable),
    ("Request for unknown model: 'm' version 1 is not at ready state", None, Unavailable),
    (STOPPING, None, Unavailable),
    ("Server exiting", "StatusCode.UNAVAILABLE", Unavailable),
    ("onnx runtime error: bad shape", "StatusCode.INTERNAL", InternalError),
    ("bundle: damaged", "StatusCode.INTERNAL", InternalError),
]


@pytest.mark.parametrize(("text", "status", "kind"), SAID, ids=[text for text, _, _ in SAID])
def test_tritons_errors_become_ours(text: str, status: str | None, kind: type) -> None:
    error = from_triton(InferenceServerException(text, status=status), "m")
    assert isinstance(error, kind)
    assert isinstance(error, Overloaded | Unavailable) == (error.retry_after_s is not None)
    assert "onnx" not in error.message


@pytest.mark.parametrize(
    ("text", "is_loss"),
    [
        (STOPPING, False),
        ("failed to connect to all addresses", False),
        ("Request for unknown model: 'm' is not found", False),
        ("Socket closed", True),
        ("Stub process 'm_0_0' is not healthy.", True),
    ],
)
def test_call_that_was_refused_is_not_lost(text: str, is_loss: bool) -> None:
    error = from_triton(InferenceServerException(text, status="StatusCode.UNAVAILABLE"), "m")
    assert isinstance(error, Unavailable)
    assert error.is_loss == is_loss


async def test_liveness_tells_a_server_that_stops_from_one_that_is_away(fake, inference) -> None:
    assert await inference.liveness() is Liveness.LIVE
    fake.is_stopping = True
    assert await inference.liveness() is Liveness.STOPPING
    away = TritonInference("127.0.0.1:1")
    assert await away.liveness() is Liveness.UNREACHABLE
    await away.close()


async def test_calls_of_a_server_that_is_lost_are_ended(fake, inference) -> None:
    running = await begin(fake, inference, BATCH)
    inference.end_calls()
    with pytest.raises(Unavailable) as caught:
        await running
    assert caught.value.is_loss


@pytest.mark.parametrize(
    "text",
    [
        "in ensemble: internal: decoding failed: /models/x/step.onnx 'secret'",
        "onnx runtime error 2: too_long: /models/x 'secret'",
        "openvino error overloaded: /models/x 'secret'",
        "Failed to process the request: Traceback: /models/x 'secret'",
    ],
)
def test_text_of_an_internal_error_is_logged_and_not_returned(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = from_triton(InferenceServerException(text, status="StatusCode.INTERNAL"), "tiny")
    assert type(error) is InternalError
    assert error.message == "tiny failed: the gateway's log has the cause"
    assert "secret" in caplog.text
