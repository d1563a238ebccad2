"""The backend's response thread with fake channels, then the backend in a real Triton."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from inference.bundle.inputs import AlignmentSpec
from inference.engine import codec
from inference.engine.codec import Arrays
from inference.engine.engine import Engine, decode
from inference.engine.request import Cancelled, EngineRequest, Failed
from inference.engine.runners.candidates import Candidates
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.errors import InvalidRequest
from inference.generation import Finished, Generation, Hypothesis, TokenChunk
from serving.backends.autoregressive.request_queue import (
    PendingQueue,
    PendingResponse,
    ResponseSender,
)
from serving.liveness.stall_detector import EngineStats
from serving.triton.server import TritonServer
from tests.inference.engine.fake_runner import FakeRunner
from tests.inference.engine.toy_bundles import VOCABULARY, attention_bundle, attention_logits
from tests.serving.triton.tiny import brief_server, settings
from tests.serving.versioned_bundles import TOKENIZER, tokenizer_file

PATIENCE_S = 30
DEFAULTS = Generation(
    decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=30, num_beams=2
)
FINISHED = Finished((Hypothesis((5, 6, 1), -0.5, "stop"), Hypothesis((5,), -0.75, "length")), 4)


def options(**fields: object) -> np.ndarray:
    return np.array([json.dumps(fields).encode()], np.object_)


# ------------------------------------------------------------------------------------- sender


@dataclass
class FakeChannel:
    """Records what a client would see; sends wait while the gate is closed."""

    seen: list[Arrays | str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    sending: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    has_left: bool = False

    def send(self, arrays: Arrays, *, is_final: bool) -> None:
        self.sending.set()
        assert self.gate.wait(PATIENCE_S)
        self.seen.append(arrays)
        if is_final:
            self.ended.set()

    def fail(self, message: str) -> None:
        self.seen.append(message)
        self.ended.set()

    def end(self) -> None:
        self.ended.set()

    def is_cancelled(self) -> bool:
        return self.has_left


@pytest.fixture
def sender() -> Iterator[ResponseSender]:
    sender = ResponseSender(poll_s=0.001)
    yield sender
    sender.close()


def test_chunks_that_are_ready_together_are_sent_together(sender: ResponseSender) -> None:
    channel = FakeChannel()
    pending = sender.open(channel)
    sender.send(pending, TokenChunk((5,)))
    assert channel.sending.wait(PATIENCE_S)  # busy with the first while others arrive
    for token in (6, 7, 8):
        sender.send(pending, TokenChunk((token,)))
    sender.send(pending, FINISHED)
    channel.gate.set()
    assert channel.ended.wait(PATIENCE_S)
    tokens = [arrays[codec.TOKEN_IDS].tolist() for arrays in channel.seen]
    assert tokens == [[5], [6, 7, 8]]


def test_the_last_tokens_are_sent_with_the_result_however_late_that_is(
    sender: ResponseSender,
) -> None:
    channel, other = FakeChannel(), FakeChannel()
    channel.gate.set()
    other.gate.set()
    pending = sender.open(channel)
    sender.send(pending, TokenChunk((5, 6), is_last=True))
    sender.send(sender.open(other), FINISHED)
    assert other.ended.wait(PATIENCE_S)  # the sender has had the tokens alone
    sender.send(pending, FINISHED)
    assert channel.ended.wait(PATIENCE_S)
    (arrays,) = channel.seen
    assert arrays[codec.TOKEN_IDS].tolist() == [5, 6]
    assert codec.FINISH_REASON in arrays


def test_failure_is_sent_as_text(sender: ResponseSender) -> None:
    channel = FakeChannel()
    sender.send(sender.open(channel), Failed(InvalidRequest("too odd")))
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == ["invalid_request: too odd"]


def test_cancelled_request_ends_without_a_response(sender: ResponseSender) -> None:
    channel = FakeChannel()
    sender.send(sender.open(channel), Cancelled())
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []


def test_cancelled_request_cancels_its_sequence(sender: ResponseSender) -> None:
    cancelled = threading.Event()

    class Handle(SequenceState):
        def cancel(self) -> None:
            cancelled.set()

    pending = sender.open(FakeChannel(has_left=True))
    pending.sequence = Handle(EngineRequest(DEFAULTS), lambda _: None)
    assert cancelled.wait(PATIENCE_S)


def test_new_requests_are_not_polled_for_cancellation() -> None:
    class PollRecorder(FakeChannel):
        def is_cancelled(self) -> bool:
            raise AssertionError("a round trip for a pending that has just begun")

    sender = ResponseSender(poll_s=1e6)
    channel = PollRecorder()
    pending = sender.open(channel)
    sender._poll()
    sender.send(pending, Cancelled())
    sender.close()
    assert channel.ended.is_set()


def test_broken_channel_does_not_affect_the_others(sender: ResponseSender) -> None:
    class Broken(FakeChannel):
        def fail(self, message: str) -> None:
            raise RuntimeError("gone")

    channel = FakeChannel()
    sender.send(sender.open(Broken()), Failed(InvalidRequest("x")))
    sender.send(sender.open(channel), Failed(InvalidRequest("y")))
    assert channel.ended.wait(PATIENCE_S)


# ---------------------------------------------------------------------------------------- Triton

CONFIG = """
backend: "autoregressive"
max_batch_size: 0
input [
  { name: "source_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "prompt_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true },
  { name: "options" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "token_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "sequences" data_type: TYPE_INT64 dims: [ -1, -1 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "log_probs" data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: "top_ids" data_type: TYPE_INT64 dims: [ -1, -1, -1 ] },
  { name: "top_log_probs" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] },
  { name: "alignment" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] },
  { name: "usage" data_type: TYPE_INT32 dims: [ 2 ] }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
model_transaction_policy { decoupled: true }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    bundle = attention_bundle(repository, aligns=True)
    changes = {
        "generation": DEFAULTS,
        "alignment": AlignmentSpec(over="tokens"),
        "tokenizer": TOKENIZER,
    }
    manifest = bundle.manifest.model_copy(update=changes)
    file = bundle.folder / TOKENIZER.files["tokenizer"]
    file.write_text(json.dumps(tokenizer_file()), encoding="utf-8")
    (bundle.folder / "bundle.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    (repository / "toy" / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    with brief_server(settings(Path(repository))) as server:
        yield server


class Stream:
    """One sequence over one gRPC stream."""

    def __init__(
        self, server: TritonServer, tensors: dict[str, np.ndarray], request_id: str = ""
    ) -> None:
        self._client = triton.InferenceServerClient(server.grpc_address)
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        self.send(tensors, request_id)

    def send(
        self,
        tensors: dict[str, np.ndarray],
        request_id: str = "",
        parameters: dict[str, bool] | None = None,
    ) -> None:
        inputs = []
        for name, array in tensors.items():
            kind = "BYTES" if array.dtype == np.object_ else "INT64"
            inputs.append(triton.InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        self._client.async_stream_infer(
            "toy",
            inputs,
            request_id=request_id,
            parameters=parameters,
            enable_empty_final_response=True,
        )

    def next(self) -> dict[str, np.ndarray]:
        """The next response.

        Raises:
            InferenceServerException: what Triton reports.
        """
        result, error = self._answers.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        names = [output.name for output in result.get_response().outputs]
        return {name: result.as_numpy(name) for name in names}

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


def responses_to(
    server: TritonServer, source: list[int], **overrides: object
) -> list[dict[str, Any]]:
    """All responses up to the one with the sequences."""
    tensors = {"source_ids": np.array(source), "options": options(**overrides)}
    stream = Stream(server, tensors)
    try:
        responses = [stream.next()]
        while codec.SEQUENCES not in responses[-1]:
            responses.append(stream.next())
        return responses
    finally:
        stream.close()


def expected(source: list[int], **fields: object) -> Finished:
    rules = DEFAULTS.model_copy(update=fields)
    runner = FakeRunner(attention_logits, VOCABULARY)
    return decode(runner, [EngineRequest(rules, np.array(source))])[0]


@pytest.mark.integration
@pytest.mark.parametrize("beams", [1, 3])
def test_triton_returns_the_tokens_of_the_graph(server: TritonServer, beams: int) -> None:
    wanted = expected([4, 9, 2], num_beams=beams, num_return_sequences=beams)
    (answer,) = responses_to(server, [4, 9, 2], num_beams=beams, num_return_sequences=beams)
    for row, hypothesis in zip(answer[codec.SEQUENCES], wanted.hypotheses, strict=True):
        assert tuple(row[row != codec.NO_TOKEN]) == hypothesis.token_ids
    scores = [hypothesis.score for hypothesis in wanted.hypotheses]
    assert answer[codec.SCORES] == pytest.approx(scores, rel=1e-4)
    assert answer[codec.USAGE].tolist() == [3, wanted.generated_tokens]


@pytest.mark.integration
def test_streamed_chunks_add_up_to_the_sequence(server: TritonServer) -> None:
    responses = responses_to(server, [5, 5], num_beams=1, stream=True)
    tokens = [token for one in responses for token in one[codec.TOKEN_IDS].tolist()]
    assert tokens == responses[-1][codec.SEQUENCES][0].tolist()


@pytest.mark.integration
def test_triton_returns_requested_outputs_only(server: TritonServer) -> None:
    request = {"num_beams": 1, "do_sample": True, "seed": 3, "num_return_sequences": 2}
    (plain,) = responses_to(server, [4, 9, 2], **request)
    assert codec.LOG_PROBS not in plain
    assert codec.ALIGNMENT not in plain
    (answer,) = responses_to(server, [4, 9, 2], **request, top_log_probs=2, return_alignment=True)
    wanted = expected([4, 9, 2], **request, top_log_probs=2).hypotheses
    for row, hypothesis in enumerate(wanted):
        length = len(hypothesis.token_ids)
        assert tuple(answer[codec.SEQUENCES][row, :length]) == hypothesis.token_ids
        log_probs = answer[codec.LOG_PROBS][row, :length]
        assert log_probs == pytest.approx(hypothesis.log_probs, rel=1e-3, abs=1e-4)
        best = [[token for token, _ in place] for place in hypothesis.top]
        assert answer[codec.TOP_IDS][row, :length].tolist() == best
    assert answer[codec.ALIGNMENT].shape == (*answer[codec.SEQUENCES].shape, 3)
    assert np.abs(answer[codec.ALIGNMENT][0, 0]).min() > 0


@pytest.mark.integration
def test_chunks_carry_their_log_probabilities(server: TritonServer) -> None:
    responses = responses_to(server, [5, 5], num_beams=1, stream=True, top_log_probs=1)
    last = responses[-1]
    streamed = [value for one in responses[:-1] for value in one[codec.LOG_PROBS][0].tolist()]
    own = len(last[codec.TOKEN_IDS])
    all_log_probs = last[codec.LOG_PROBS][0].tolist()
    assert streamed == all_log_probs[: len(all_log_probs) - own]


@pytest.mark.integration
def test_concurrent_streams_get_their_own_answers(server: TritonServer) -> None:
    sources = [[n % VOCABULARY, (3 * n) % VOCABULARY] for n in range(24)]
    answers: dict[int, list[int]] = {}

    def send(index: int) -> None:
        row = responses_to(server, sources[index], num_beams=1)[-1][codec.SEQUENCES][0]
        answers[index] = row.tolist()

    threads = [threading.Thread(target=send, args=(n,)) for n in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    wanted = {n: expected(s, num_beams=1).hypotheses[0] for n, s in enumerate(sources)}
    assert answers == {n: list(hypothesis.token_ids) for n, hypothesis in wanted.items()}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "overrides", "text"),
    [
        ([99], {}, "invalid_request: source_ids holds ids outside"),
        ([3], {"num_beams": 99}, "invalid_request: num_beams"),
        (
            [3],
            {"num_beams": 1, "num_return_sequences": 2},
            "invalid_request: options: .*num_return",
        ),
    ],
)
def test_invalid_request_fails_with_its_reason(
    server: TritonServer, source: list[int], overrides: dict[str, object], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text):
        responses_to(server, source, **overrides)


@pytest.mark.integration
def test_service_continues_after_clients_cancel_mid_stream(server: TritonServer) -> None:
    for _ in range(20):
        tensors = {"source_ids": np.array([4]), "options": options(num_beams=1, stream=True)}
        Stream(server, tensors).close()
    assert responses_to(server, [4], num_beams=1)[-1][codec.SEQUENCES].size


@pytest.mark.integration
def test_heartbeat_and_counters_are_on_tritons_metrics(server: TritonServer) -> None:
    def stats() -> EngineStats:
        status = server.status()
        assert status.pending == 0
        return status.engines["toy"]

    before = stats()
    for _ in range(3):
        responses_to(server, [4], num_beams=1)
    deadline = time.monotonic() + PATIENCE_S
    while stats().figures["admitted"] < before.figures["admitted"] + 3 or stats().is_busy:
        assert time.monotonic() < deadline, "the heartbeat does not count three sequences"
        time.sleep(0.05)
    after = stats()
    assert after.beats > before.beats
    assert after.figures["steps"] > before.figures["steps"]
    assert after.figures["failures"] == 0


@pytest.mark.integration
def test_request_aborted_on_its_stream_ends_without_a_response(server: TritonServer) -> None:
    request = {"source_ids": np.array([4]), "options": options(num_beams=1)}
    stream = Stream(server, request, request_id="one")
    stream.send(request, request_id="one", parameters={codec.ABORT: True})
    ends = [stream.next(), stream.next()]
    stream.close()
    assert {} in ends, "calling off is answered with nothing"
    assert responses_to(server, [4], num_beams=1)[-1][codec.SEQUENCES].size


class GatedRunner(FakeRunner):
    """Steps only when the test releases its gate."""

    def __init__(self) -> None:
        super().__init__(attention_logits, VOCABULARY)
        self.gate = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def group(self, width: int):
        group, runner = super().group(width), self
        step = group.step

        def gated(*arguments: object, **options: object) -> Candidates:
            runner.began.release()
            assert runner.gate.acquire(timeout=PATIENCE_S)
            return step(*arguments, **options)

        group.step = gated
        return group


class Backend:
    """An engine with one waiting place behind a pending queue."""

    def __init__(self, folder) -> None:
        from inference.engine.request import RequestValidator

        self.runner = GatedRunner()
        capacity = Capacity(waiting=1)
        self.engine = Engine(
            self.runner, RequestValidator(attention_bundle(folder).manifest), capacity
        )
        self.sender = ResponseSender(poll_s=1e6)
        self.queue = PendingQueue(self.engine, self.sender)

    def submit(self, name: str, length: int = 30) -> tuple[FakeChannel, PendingResponse]:
        channel = FakeChannel()
        channel.gate.set()
        pending = self.sender.open(channel)
        rules = DEFAULTS.model_copy(update={"num_beams": 1, "max_new_tokens": length})
        self.queue.submit(name, pending, EngineRequest(rules, np.array([4])))
        return channel, pending

    def close(self) -> None:
        for _ in range(200):
            self.runner.gate.release()
        self.engine.close()
        self.queue.close()
        self.sender.close()


@pytest.fixture
def backend(tmp_path) -> Iterator[Backend]:
    made = Backend(tmp_path)
    yield made
    made.close()


def test_running_sequence_takes_no_further_step_after_an_abort(backend: Backend) -> None:
    channel, pending = backend.submit("one")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    backend.queue.abort("one")
    backend.runner.gate.release()  # the step under way
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []
    assert pending.sequence.generated <= 2, "prefill chose one token, the open step another"
    assert not backend.runner.began.acquire(blocking=False), "a step after the abort"


def test_request_is_submitted_at_once_while_the_engine_has_capacity(backend: Backend) -> None:
    _, pending = backend.submit("one")
    assert pending.sequence is not None


def test_queued_request_ends_at_once_when_aborted(backend: Backend) -> None:
    running, _ = backend.submit("running")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    others = {name: backend.submit(name) for name in ("accepted", "queued", "behind")}
    backend.queue.abort("behind")
    assert others["behind"][0].ended.wait(PATIENCE_S)
    assert not running.ended.is_set()
    for _ in range(200):
        backend.runner.gate.release()
    for name in ("accepted", "queued"):
        assert others[name][0].ended.wait(PATIENCE_S)
        assert others[name][0].seen, "its response"
    assert others["behind"][0].seen == []
    assert others["behind"][1].sequence is None


def test_queued_request_that_its_client_cancelled_ends(backend: Backend) -> None:
    """Triton never frees a request without a final response, nor unloads its model."""
    backend.submit("running")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    backend.submit("accepted")
    channel, pending = backend.submit("behind")
    pending.abort()  # as the poll does
    for _ in range(200):
        backend.runner.gate.release()
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []
    assert pending.sequence is None


def test_abort_of_a_finished_or_unknown_request_is_no_error(backend: Backend) -> None:
    channel, _ = backend.submit("one", length=1)
    for _ in range(3):
        backend.runner.gate.release()
    assert channel.ended.wait(PATIENCE_S)
    backend.queue.abort("one")
    backend.queue.abort("unknown")


def test_queued_requests_fail_when_the_engine_is_closed(tmp_path) -> None:
    backend = Backend(tmp_path)
    channels = [backend.submit(f"{number}")[0] for number in range(6)]
    backend.close()
    assert all(channel.ended.is_set() for channel in channels)
