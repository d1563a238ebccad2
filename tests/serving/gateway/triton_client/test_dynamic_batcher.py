"""Joined calls against a model in memory, and sequences that share a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStreamInferResponse

from inference.bundle.manifest import Role
from inference.engine.codec import ABORT
from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    ServingError,
    Unavailable,
)
from inference.tasks.shared.model_calls import MAX_ROWS, InferCall, Outcome, Outputs
from serving.gateway.observability.metrics import Metrics
from serving.gateway.triton_client.dynamic_batcher import DynamicBatcher
from serving.gateway.triton_client.stream_pool import StreamPool
from tests.serving.waiting import settled

EMBEDDING = {"embedding": Role.EMBEDDING}
LIMIT_S = 20.0
"""Of a test: a call that is forgotten would keep its caller for a minute."""
MAX_TURNS = 5000
"""Of the event loop, after which all calls of the property have ended."""


class Model:
    """Doubles the first token of each row; each call is held until the test releases it."""

    def __init__(self) -> None:
        self.calls: list[InferCall] = []
        self.timeouts_s: list[float] = []
        self.held: list[asyncio.Event] = []
        self.is_held = True
        self.cancelled = 0
        self.running = 0
        self.most_running = 0
        self.faults: dict[int, Exception] = {}
        """First token of a row → what a call with that row ends with."""

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        self.calls.append(call)
        self.timeouts_s.append(timeout_s)
        self.held.append(asyncio.Event())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.is_held:
                await self.held[-1].wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        firsts = call.inputs["token_ids"].reshape(call.rows, -1)[:, 0]
        for first in firsts.tolist():
            if first in self.faults:
                raise self.faults[first]
        return dict.fromkeys(call.outputs.values(), firsts[:, None] * 2.0)

    def firsts(self, number: int) -> list[int]:
        """First tokens of a call's rows."""
        firsts: list[int] = self.calls[number].inputs["token_ids"][:, 0].tolist()
        return firsts

    def release(self, number: int) -> None:
        self.held[number].set()

    def release_all(self) -> None:
        self.is_held = False
        for event in self.held:
            event.set()


class Stack:
    """A batcher over the model, and its callers."""

    def __init__(self, max_calls: int | None = 1, max_tokens: int = 1000) -> None:
        self.model = Model()
        self.metrics = Metrics()
        self.batcher = DynamicBatcher(
            self.model.infer, self.metrics, max_calls=max_calls, max_tokens=max_tokens
        )

    def submit(
        self, call: InferCall, timeout_s: float = 60.0, priority: int = 0
    ) -> asyncio.Task[Outcome]:
        async def outcome() -> Outcome:
            found, _ = await self.batcher.outcome(call, timeout_s, priority)
            return found

        return asyncio.ensure_future(outcome())

    async def begin(self, *calls: InferCall) -> list[asyncio.Task[Outcome]]:
        """Calls that have been sent, or wait for others."""
        begun = [self.submit(call) for call in calls]
        await settled()
        return begun

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model": "m"})


@asynccontextmanager
async def stack(max_calls: int | None = 1, max_tokens: int = 1000) -> AsyncIterator[Stack]:
    made = Stack(max_calls, max_tokens)
    async with asyncio.timeout(LIMIT_S):
        yield made
        await made.batcher.close()


def call(
    *firsts: int, width: int = 8, version: int = 1, outputs: dict[str, Role] = EMBEDDING
) -> InferCall:
    ids = np.zeros((len(firsts), width), np.int64)
    ids[:, 0] = firsts
    lengths = np.full(len(firsts), width, np.int32)
    return InferCall("m", version, {"token_ids": ids, "lengths": lengths}, outputs)


def rows(outcome: Outcome) -> list[float]:
    assert isinstance(outcome, dict), outcome
    found: list[float] = outcome[Role.EMBEDDING][:, 0].tolist()
    return found


async def test_call_is_sent_at_once_when_nothing_is_in_flight() -> None:
    async with stack() as made:
        made.model.release_all()
        single = call(1, 2)
        assert rows(await made.submit(single)) == [2.0, 4.0]
        assert made.model.calls == [single]
        assert made.metric("triptych_joined_calls_total") is None


async def test_calls_of_one_turn_of_the_loop_are_joined() -> None:
    async with stack(max_calls=2) as made:
        made.model.release_all()
        results = await asyncio.gather(*(made.submit(call(n, n + 10)) for n in (1, 2, 3)))
        assert [rows(result) for result in results] == [[2, 22], [4, 24], [6, 26]]
        assert [made.model.firsts(n) for n in range(len(made.model.calls))] == [
            [1, 11, 2, 12, 3, 13]
        ]
        assert made.metric("triptych_call_rows_sum") == 6
        assert made.metric("triptych_call_rows_count") == 1
        assert made.metric("triptych_joined_calls_total") == 3


@pytest.mark.parametrize("instances", [1, 3])
async def test_by_default_one_call_more_than_the_model_has_instances_is_in_flight(
    instances: int,
) -> None:
    async with stack(max_calls=None) as made:
        for number in range(6):
            made.submit(replace(call(number), instances=instances))
            await settled()
        assert made.model.running == instances + 1
        assert made.batcher.waiting == 5 - instances
        made.model.release_all()


async def test_calls_wait_while_the_model_is_busy_and_then_share_one() -> None:
    async with stack(max_calls=2) as made:
        [first] = await made.begin(call(1))
        [second] = await made.begin(call(2))
        later = await made.begin(*(call(n) for n in (3, 4, 5)))
        assert (len(made.model.calls), made.batcher.waiting) == (2, 3)
        made.model.release(1)
        assert rows(await second) == [4]
        await settled()
        assert made.model.firsts(2) == [3, 4, 5]
        assert made.batcher.waiting == 0
        made.model.release_all()
        assert [rows(await one) for one in (first, *later)] == [[2], [6], [8], [10]]
        assert made.model.most_running == 2


@pytest.mark.parametrize(
    "other",
    [
        call(2, width=16),
        call(2, outputs={"embedding": Role.EMBEDDING, "logits": Role.LOGITS}),
        InferCall("m", 1, {"token_ids": np.full((1, 8), 2, np.int64)}, EMBEDDING),
        InferCall(
            "m",
            1,
            {"token_ids": np.full((1, 8), 2, np.int32), "lengths": np.ones(1, np.int32)},
            EMBEDDING,
        ),
    ],
    ids=["length", "outputs", "inputs", "type"],
)
async def test_only_calls_of_one_form_are_joined(other: InferCall) -> None:
    async with stack() as made:
        [running] = await made.begin(call(1))
        waiting = await made.begin(call(3), other, call(4))
        made.model.release_all()
        await asyncio.gather(running, *waiting)
        assert [made.model.firsts(n) for n in range(3)] == [[1], [3, 4], [2]]


async def test_versions_and_models_are_independent() -> None:
    async with stack() as made:
        old, new = await made.begin(call(1), call(2, version=2))
        assert [each.version for each in made.model.calls] == [1, 2]
        made.model.release_all()
        assert [rows(await old), rows(await new)] == [[2], [4]]


async def test_bucket_of_the_oldest_call_goes_first() -> None:
    async with stack() as made:
        [running] = await made.begin(call(1))
        rare = made.submit(call(50, width=16))
        others = await made.begin(*(call(n) for n in range(2, 6)))
        made.model.release(0)
        await settled()
        assert made.model.firsts(1) == [50]
        made.model.release_all()
        await asyncio.gather(running, rare, *others)
        assert made.model.firsts(2) == [2, 3, 4, 5]


async def test_priority_is_a_head_start_within_a_bucket_and_between_buckets() -> None:
    async with stack(max_tokens=8) as made:
        await made.begin(call(1))
        for first, width, priority in ((2, 8, -60), (3, 8, 0), (4, 6, -60), (5, 6, 10)):
            made.submit(call(first, width=width), priority=priority)
        await settled()
        for number in range(4):
            made.model.release(number)
            await settled()
        assert [made.model.firsts(number) for number in range(1, 5)] == [[5], [3], [2], [4]]


async def test_rare_bucket_does_not_starve_behind_a_steady_one() -> None:
    async with stack() as made:
        tasks = [made.submit(call(1))]
        await settled()
        tasks += [made.submit(call(2)), made.submit(call(99, width=16))]
        for number in range(2):  # more of the common bucket arrives before each return
            tasks.append(made.submit(call(10 + number)))
            await settled()
            made.model.release(number)
            await settled()
        assert made.model.firsts(2) == [99]
        made.model.release_all()
        await asyncio.gather(*tasks)


async def test_joined_call_is_within_rows_and_tokens() -> None:
    async with stack(max_tokens=8 * 4) as made:
        [running] = await made.begin(call(1))
        waiting = await made.begin(*(call(*range(10, 10 + n)) for n in (1, 2, 2, 9, 1)))
        made.model.release_all()
        await asyncio.gather(running, *waiting)
        # 3 rows and 2 more would be 40 tokens; nine rows are too many and still sent, alone.
        assert [each.rows for each in made.model.calls] == [1, 3, 2, 9, 1]
    async with stack(max_tokens=10**6) as made:
        [running] = await made.begin(call(1))
        waiting = await made.begin(*(call(*[n] * 8) for n in range(9)))
        made.model.release_all()
        await asyncio.gather(running, *waiting)
        assert [each.rows for each in made.model.calls] == [1, MAX_ROWS, 8]


async def test_tokens_of_images_are_their_patches() -> None:
    def image(first: int) -> InferCall:
        return InferCall(
            "m", 1, {"token_ids": np.full((1, 32, 32, 3), first, np.uint8)}, {}
        )  # 4 tokens

    async with stack(max_tokens=8) as made:
        tasks = [made.submit(image(n)) for n in range(5)]
        made.model.release_all()
        await asyncio.gather(*tasks)
        assert [each.rows for each in made.model.calls] == [2, 2, 1]


async def test_cancelled_caller_leaves_the_queue() -> None:
    async with stack() as made:
        [running] = await made.begin(call(1))
        leaving, staying = await made.begin(call(2), call(3))
        leaving.cancel()
        await settled()
        assert made.batcher.waiting == 1
        made.model.release_all()
        assert [rows(await running), rows(await staying)] == [[2], [6]]
        assert made.model.firsts(1) == [3]


async def test_cancelled_caller_does_not_end_the_call_of_others() -> None:
    async with stack() as made:
        leaving, staying = await made.begin(call(1), call(2))
        assert made.model.firsts(0) == [1, 2]
        leaving.cancel()
        await settled()
        assert made.model.cancelled == 0
        made.model.release_all()
        assert rows(await staying) == [4]


async def test_call_ends_when_its_last_caller_leaves() -> None:
    async with stack() as made:
        leaving = await made.begin(call(1), call(2))
        [waiting] = await made.begin(call(3))
        for task in leaving:
            task.cancel()
        await settled()
        assert made.model.cancelled == 1
        assert made.model.firsts(1) == [3]
        made.model.release_all()
        assert rows(await waiting) == [6]


async def test_deadline_of_one_caller_is_its_own() -> None:
    async with stack() as made:
        hasty, patient = made.submit(call(1), timeout_s=0.01), made.submit(call(2))
        assert isinstance(await hasty, DeadlineExceeded)
        assert made.model.timeouts_s[0] > 50  # of the patient one
        made.model.release_all()
        assert rows(await patient) == [4]


async def test_deadline_while_waiting_drops_the_call() -> None:
    async with stack() as made:
        [running] = await made.begin(call(1))
        assert isinstance(await made.submit(call(2), timeout_s=0.01), DeadlineExceeded)
        assert made.batcher.waiting == 0
        made.model.release_all()
        await running
        assert len(made.model.calls) == 1


@pytest.mark.parametrize("error", [InternalError("broken"), InvalidRequest("bad row")])
async def test_only_the_failing_row_gets_the_error(error: ServingError) -> None:
    async with stack() as made:
        made.model.faults[3] = error
        made.model.release_all()
        results = await asyncio.gather(*(made.submit(call(n)) for n in range(1, 8)))
        assert [r.message if isinstance(r, ServingError) else rows(r) for r in results] == [
            [2], [4], error.message, [8], [10], [12], [14],
        ]  # fmt: skip
        assert type(results[2]) is type(error)
        assert made.model.most_running == 1


async def test_retry_ends_when_its_last_caller_leaves() -> None:
    async with stack() as made:
        made.model.faults[2] = InternalError("broken")
        first, other = await made.begin(call(1), call(2))
        made.model.release(0)  # the joined call fails
        await settled()
        made.model.release(1)
        assert rows(await first) == [2]
        await settled()
        assert made.model.firsts(2) == [2]
        other.cancel()
        await settled()
        assert (made.model.cancelled, made.model.running) == (1, 0)


@pytest.mark.parametrize(
    "error", [Unavailable("away"), DeadlineExceeded("late"), Overloaded("busy")]
)
async def test_errors_that_are_of_no_row_are_not_retried(error: ServingError) -> None:
    async with stack() as made:
        made.model.faults[1] = error
        made.model.release_all()
        results = await asyncio.gather(*(made.submit(call(n)) for n in range(4)))
        assert [type(result) for result in results] == [type(error)] * 4
        assert len(made.model.calls) == 1


async def test_every_caller_gets_that_its_version_is_not_loaded() -> None:
    async with stack() as made:
        error = Unavailable("gone", retry_after_s=1)
        error.is_not_loaded = True
        made.model.faults[1] = error
        made.model.release_all()
        results = await asyncio.gather(*(made.submit(call(n)) for n in range(3)))
        assert all(isinstance(r, Unavailable) and r.is_not_loaded for r in results)
        assert all(r.retry_after_s == 1 for r in results if isinstance(r, Unavailable))
        assert len({id(result) for result in results}) == 3


async def test_bug_reaches_every_caller() -> None:
    async with stack() as made:
        made.model.faults[1] = KeyError("bug")
        made.model.release_all()
        tasks = [made.submit(call(n)) for n in range(2)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [KeyError, KeyError]
        assert rows(await made.submit(call(5))) == [10]


async def test_closing_ends_everything() -> None:
    async with stack() as made:
        running, waiting = await made.begin(call(1), call(2, width=16))
        await made.batcher.close()
        assert isinstance(await running, Unavailable)
        assert isinstance(await waiting, Unavailable)
        assert (made.model.cancelled, made.batcher.waiting) == (1, 0)
        assert len(made.model.calls) == 1


async def test_small_result_does_not_keep_the_batch() -> None:
    async with stack() as made:
        made.model.release_all()
        first, _ = await asyncio.gather(made.submit(call(1)), made.submit(call(2)))
        assert isinstance(first, dict)
        assert first[Role.EMBEDDING].base is None


async def test_time_of_sending_is_after_the_wait() -> None:
    async with stack() as made:
        running = asyncio.ensure_future(made.batcher.outcome(call(1), 9.0))
        await settled()
        waiting = asyncio.ensure_future(made.batcher.outcome(call(2), 9.0))
        await asyncio.sleep(0.02)
        made.model.release_all()
        (_, first_s), (_, second_s) = await asyncio.gather(running, waiting)
        assert second_s - first_s >= 0.02


Step = tuple[int, int, int, bool]
"""Rows, width / 8, turns of the loop before the next arrival, whether the caller leaves."""


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(0, 4), st.booleans()),
        max_size=30,
    ),
    max_calls=st.integers(1, 3),
    max_tokens=st.integers(8, 400),
    faults=st.sets(st.integers(0, 29), max_size=3),
)
def test_every_caller_gets_exactly_its_own_rows(
    steps: list[Step], max_calls: int, max_tokens: int, faults: set[int]
) -> None:
    asyncio.run(_arrivals(steps, max_calls, max_tokens, faults))


async def _arrivals(steps: list[Step], max_calls: int, max_tokens: int, faults: set[int]) -> None:
    async with stack(max_calls, max_tokens) as made:
        made.model.faults = {number * 100: InternalError("fault") for number in faults}
        infer: Callable[[InferCall, float], Awaitable[Outputs]] = made.model.infer
        made.model.is_held = False

        async def slow(sent: InferCall, timeout_s: float) -> Outputs:
            assert sent.rows <= MAX_ROWS
            outputs = await infer(sent, timeout_s)
            for _ in range(sent.rows % 5):
                await asyncio.sleep(0)
            return outputs

        made.batcher._infer = slow
        tasks = []
        for number, (count, width, pause, leaves) in enumerate(steps):
            firsts = [number * 100 + row for row in range(count)]
            tasks.append(made.submit(call(*firsts, width=8 * width)))
            for _ in range(pause):
                await asyncio.sleep(0)
            if leaves:
                tasks[-1].cancel()
        for _ in range(MAX_TURNS):
            if all(task.done() for task in tasks):
                break
            await asyncio.sleep(0)
        forgotten = [number for number, task in enumerate(tasks) if not task.done()]
        assert not forgotten
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for number, (outcome, step) in enumerate(zip(outcomes, steps, strict=True)):
            if isinstance(outcome, asyncio.CancelledError):
                assert step[3]
            elif number in faults:
                assert isinstance(outcome, InternalError)
            else:
                assert rows(outcome) == [2.0 * (number * 100 + row) for row in range(step[0])]
        await settled()
        assert (made.batcher.waiting, made.model.running) == (0, 0)
        assert made.batcher._queues == {}


class FakeStream:
    """Takes requests and never responds."""

    def __init__(self, requests: AsyncIterable[ModelInferRequest]) -> None:
        self.sent: list[ModelInferRequest] = []
        self.has_ended = asyncio.Event()
        self._sending = asyncio.ensure_future(self._send(requests))

    async def _send(self, requests: AsyncIterable[ModelInferRequest]) -> None:
        async for request in requests:
            self.sent.append(request)
        self.has_ended.set()

    def cancel(self) -> bool:
        self.has_ended.set()
        return True

    async def __aiter__(self) -> AsyncIterator[ModelStreamInferResponse]:
        await self.has_ended.wait()
        return
        yield


class Streams(list[FakeStream]):
    """Opens streams for a pool and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = StreamPool(self)

    def __call__(self, requests, *, metadata=None) -> FakeStream:
        self.append(FakeStream(requests))
        return self[-1]

    @property
    def sent(self) -> list[list[tuple[str, bool]]]:
        """Ids of each stream's requests, and whether they abort."""
        return [[(one.id, ABORT in one.parameters) for one in each.sent] for each in self]


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    opened = Streams()
    yield opened
    for stream in opened:
        stream.cancel()
    await asyncio.gather(*opened.pool.reading)


def request(name: str, version: int = 1) -> ModelInferRequest:
    return ModelInferRequest(model_name="model", model_version=str(version), id=name)


async def test_sequences_of_a_version_that_may_be_gone_have_streams_of_their_own(
    streams: Streams,
) -> None:
    streams.pool.begin(request("a"))
    streams.pool.note_served("model", 2)
    for name, version in (("b", 1), ("c", 1), ("d", 2), ("e", 2)):
        streams.pool.begin(request(name, version))
    await settled()
    names = [[name for name, _ in each] for each in streams.sent]
    assert names == [["a", "d", "e"], ["b"], ["c"]]


async def test_a_version_that_may_be_gone_gets_no_abort_message(streams: Streams) -> None:
    first, second = streams.pool.begin(request("a")), streams.pool.begin(request("b"))
    first.abort()
    streams.pool.note_served("model", 2)
    second.abort()
    await settled()
    assert streams.sent == [[("a", False), ("b", False), ("a", True)]]


async def test_stream_is_open_while_it_gets_sequences(streams: Streams) -> None:
    streams.pool.begin(request("a"))
    ((stream,),) = streams.pool._streams.values()
    for name in ("b", "c"):
        stream._review()
        streams.pool.begin(request(name))
    stream._review()
    assert stream.is_open
    stream._review()
    assert not stream.is_open
    streams.pool.begin(request("d"))
    await settled()
    assert [[name for name, _ in each] for each in streams.sent] == [["a", "b", "c"], ["d"]]


async def test_stream_of_an_aborted_sequence_that_does_not_end_gets_no_others(
    streams: Streams,
) -> None:
    streams.pool.begin(request("a")).abort()
    streams.pool.begin(request("b"))
    ((stream,),) = streams.pool._streams.values()
    stream._review()
    streams.pool.begin(request("c"))
    await settled()
    assert streams.sent == [[("a", False), ("a", True), ("b", False)], [("c", False)]]
