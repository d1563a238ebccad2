"""Admission: turns of keys, deadlines, and release when the work has ended."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import grpc
import pytest

from inference.errors import InvalidRequest, Overloaded
from inference.processing.cancellation import Abandoned, check_abandoned
from serving.gateway.admission.admission import Admission, FairTurns, LocalCounts, Turns
from serving.gateway.admission.task_threads import LARGE, TaskThreads
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of
from tests.serving.gateway.test_grpc import Front
from tests.serving.waiting import settled, until
from triptych import triptych_pb2 as pb


def admission(counts: LocalCounts | None = None, sequences: int = 8) -> Admission:
    limits = {"max_requests": 1, "max_tokens": 10, "max_pixels": 9, "max_bytes": 9}
    return Admission(**limits, max_sequences=sequences, counts=counts)


async def test_request_that_fails_or_is_refused_is_no_longer_counted() -> None:
    counts = LocalCounts()
    gate = admission(counts)

    def serve() -> None:
        with gate.request():
            with pytest.raises(Overloaded):
                gate.check()
            with pytest.raises(Overloaded), gate.request():
                pytest.fail("it was admitted")
            assert counts.total().requests == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve()
    assert counts.total().requests == 0
    gate.check()


async def test_tokens_are_released_after_a_failure_and_after_a_refusal() -> None:
    counts = LocalCounts()
    gate = admission(counts)

    def serve() -> None:
        with gate.reserve_tokens(6):
            with pytest.raises(Overloaded), gate.reserve_tokens(5):
                pytest.fail("they were admitted")
            assert counts.total().tokens == 6
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve()
    assert counts.total().tokens == 0


def test_tokens_that_never_fit_are_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="at most 10"), admission().reserve_tokens(11):
        pytest.fail("they were admitted")


async def test_streams_leave_an_eighth_of_the_turns_to_others() -> None:
    gate, leave, held = admission(sequences=8), asyncio.Event(), []

    async def hold(turn: AbstractAsyncContextManager[None], name: str) -> None:
        async with turn:
            held.append(name)
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(hold(gate.stream_turn(0), "stream"))
        await settled()
        assert (held, gate.waiting) == (["stream"] * 7, 1)
        group.create_task(hold(gate.turn(0), "other"))
        await settled()
        assert held[7:] == ["other"]
        leave.set()
    assert (held[8:], gate.waiting) == (["stream"], 0)


async def test_caller_that_is_cancelled_while_it_waits_is_not_counted() -> None:
    gate = admission(sequences=1)
    async with gate.turn(0):
        waiting = asyncio.create_task(gate.turn(0).__aenter__())
        await settled()
        assert gate.waiting == 1
        waiting.cancel()
        await asyncio.wait((waiting,))
    assert gate.waiting == 0
    async with gate.turn(0):
        """The turn was not given to the cancelled caller."""


class Harness:
    """Callers that take turns; `order` has their names in the order in which they got one."""

    def __init__(self, limit: int) -> None:
        self.local = Turns(limit)
        self.turns = FairTurns(self.local)
        self.order: list[str] = []

    def call(self, name: str, key: str | None, priority: int = 0) -> asyncio.Task[None]:
        async def take() -> None:
            await self.turns.acquire(key, priority)
            self.order.append(name)

        return asyncio.create_task(take())


async def test_a_second_key_is_next_although_many_of_the_first_wait() -> None:
    harness = Harness(limit=2)
    calls = [harness.call(f"a{number}", "a") for number in range(6)]
    await settled()
    calls.append(harness.call("b0", "b"))
    await settled()
    assert harness.order == ["a0", "a1"]
    harness.turns.release("a")
    await settled()
    assert harness.order == ["a0", "a1", "b0"]
    for key in ("b", "a", "a", "a"):
        harness.turns.release(key)
        await settled()
    assert harness.order[3:] == ["a2", "a3", "a4", "a5"]
    for call in calls:
        await call


async def test_turns_are_returned_by_cancelled_callers() -> None:
    harness = Harness(limit=1)
    first, second, third = (harness.call(name, "a") for name in ("first", "second", "third"))
    await settled()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    harness.turns.release("a")
    third.cancel()  # at the moment in which it is given its turn
    await settled()
    assert harness.order in (["first"], ["first", "third"])
    if harness.order == ["first", "third"]:
        harness.turns.release("a")
    await harness.call("last", "b")
    assert harness.order[-1] == "last"
    assert harness.local.free == 0
    await first


async def test_a_caller_that_is_cancelled_with_its_turn_gives_it_back() -> None:
    harness = Harness(limit=1)
    first, call = harness.call("one", "a"), harness.call("two", "a")
    await settled()
    harness.turns.release("a")
    call.cancel()  # it has been given a turn, and has not run since
    await settled()
    assert call.cancelled()
    assert harness.local.free == 1
    await harness.call("three", "a")
    assert harness.order == ["one", "three"]
    await first


@pytest.mark.parametrize("key", [None, "a"])
async def test_callers_of_a_key_have_their_order(key: str | None) -> None:
    harness = Harness(limit=1)
    calls = [harness.call(str(number), key) for number in range(3)]
    for number in range(3):
        await settled()
        assert harness.order == [str(each) for each in range(number + 1)]
        harness.turns.release(key)
    await asyncio.gather(*calls)
    assert harness.local.free == 1


async def test_a_priority_is_a_head_start() -> None:
    harness = Harness(limit=1)
    names = {"first": 0, "book": -60, "late book": -60, "line": 0, "stream": 10}
    calls = [harness.call(name, None, priority) for name, priority in names.items()]
    for _ in names:
        await settled()
        harness.turns.release(None)
    assert harness.order == ["first", "stream", "line", "book", "late book"]
    await asyncio.gather(*calls)


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


@pytest.mark.parametrize(
    ("own_s", "headers"),
    [(0.05, {}), (60, {"x-request-timeout": "0.05"}), (0.05, {"x-request-timeout": "100"})],
)
async def test_time_of_a_request_is_the_gateways_or_a_shorter_one_of_its_header(
    make_gateway: MakeGateway, own_s: float, headers: dict[str, str]
) -> None:
    gateway = make_gateway(request_timeout=own_s)
    gateway.inference.hold = asyncio.Event()
    error = error_of(await gateway.post("/v1/translate", json=BODY, headers=headers, status=504))
    assert (error["type"], "within 0.05 s" in error["message"]) == ("deadline_exceeded", True)
    # On a busy machine the time may be up before the call was made.
    assert gateway.inference.cancelled == len(gateway.inference.calls)
    assert gateway.inference.running == 0


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
    response = await gateway.post("/v1/translate", json=BODY, headers=headers, status=422)
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


WAIT_S = 30


@pytest.fixture
def threads() -> Iterator[TaskThreads]:
    made = TaskThreads()
    yield made
    made.close()


async def test_work_that_nothing_waits_for_ends_before_its_caller(threads: TaskThreads) -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        try:
            while not ended.wait(0.001):
                check_abandoned()
        except Abandoned:
            ended.set()
            raise

    task = asyncio.create_task(threads.run(None, work))
    await asyncio.to_thread(started.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_of_a_request_that_ends_twice_logs_nothing(threads: TaskThreads) -> None:
    """A dialect's time limit and the deadline may both cancel it, one after the other."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(WAIT_S)
        check_abandoned()

    task = asyncio.create_task(threads.run(None, work))
    await asyncio.to_thread(started.wait, WAIT_S)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await threads.run(LARGE + 1, lambda: None)
    del task
    await asyncio.sleep(0.1)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_work_that_has_not_begun_never_does(threads: TaskThreads) -> None:
    release, begun = threading.Event(), []
    try:
        busy = [asyncio.create_task(threads.run(None, release.wait, WAIT_S)) for _ in range(64)]
        await asyncio.sleep(0)
        late = asyncio.create_task(threads.run(None, begun.append, 1))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
    finally:
        release.set()
    await asyncio.gather(*busy)
    assert begun == []


async def test_large_work_does_not_delay_other_work(threads: TaskThreads) -> None:
    release = threading.Event()
    try:
        large = [
            asyncio.create_task(threads.run(LARGE + 1, release.wait, WAIT_S)) for _ in range(64)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            assert await threads.run(LARGE, divmod, 7, 3) == (2, 1)
            assert await threads.run(None, divmod, 7, 3) == (2, 1)
    finally:
        release.set()
    await asyncio.gather(*large)


async def test_errors_come_back(threads: TaskThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await threads.run(None, divmod, 7, 0)


def test_work_outside_of_requests_goes_on() -> None:
    check_abandoned()
