"""Several servers behind one gateway: where calls go, and where they go on when one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import numpy as np
import pytest

from inference.bundle.manifest import Role
from inference.errors import Quarantined, Unavailable
from inference.generation import Finished, Overrides, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall, InferCall, Outputs
from serving.gateway.admission.admission import LocalCounts
from serving.gateway.observability import background_tasks
from serving.gateway.observability.metrics import Metrics, RequestTimes
from serving.gateway.requests.plan_runner import CallRunner
from serving.gateway.triton_client import endpoint, pool
from serving.gateway.triton_client.endpoint import (
    PREFIX_TOKENS,
    Address,
    Endpoint,
    Share,
    choose,
)
from serving.gateway.triton_client.pool import TritonPool
from serving.gateway.triton_client.retry_policy import MAX_INTERRUPTIONS, Act, RetryPolicy
from serving.gateway.triton_client.triton_inference import Liveness
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.conftest import FakeInference, FakeStats
from tests.serving.waiting import Clock, until

MODEL = "tiny"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POLL_S", 0.001)
    monkeypatch.setattr(endpoint, "HOLD_S", 0.002)
    monkeypatch.setattr(pool, "CHECK_S", 0.005)
    monkeypatch.setattr(pool, "_PAUSE_S", 0.001)
    monkeypatch.setattr(endpoint, "RESOLVE_S", 0.005)


def call(*ids: int, **options: object) -> GenerateCall:
    return GenerateCall(MODEL, 1, {"prompt_ids": np.array(ids or (1, 2, 3))}, Overrides(**options))


def infer_call(version: int = 1) -> InferCall:
    inputs = {"token_ids": np.ones((1, 4), np.int64)}
    return InferCall(MODEL, version, inputs, {"embedding": Role.EMBEDDING})


def refused(**attributes: bool) -> Unavailable:
    failure = Unavailable("down", retry_after_s=1)
    for name, value in attributes.items():
        setattr(failure, name, value)
    return failure


class FakeServer(FakeInference):
    """A server that can stop to respond; its streams then are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Liveness.LIVE
        self.incarnations = "0"
        self.ended = 0

    async def liveness(self) -> Liveness:
        return self.state

    async def incarnation(self, model: str) -> str | None:
        return self.incarnations

    def end_calls(self) -> None:
        self.ended += 1

    async def is_ready(self, model: str, version: int) -> bool:
        return self.state is Liveness.LIVE and await super().is_ready(model, version)

    async def served_version(self, model: str) -> int | None:
        return self.served.get(model) if self.state is Liveness.LIVE else None

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        if self.state is Liveness.UNREACHABLE:
            raise refused()
        return await super().infer(call, timeout_s)

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        async with aclosing(super().stream(call, timeout_s)) as items:
            behind = len(call.options.generated_ids or ())
            async for item in items:
                if self.state is Liveness.UNREACHABLE:
                    raise refused(is_loss=True)
                if isinstance(item, Finished) or behind <= 0:
                    yield item
                else:
                    behind -= 1

    @property
    def streamed(self) -> list[tuple[int, ...] | None]:
        """Tokens behind which each of its sequences began."""
        return [one.options.generated_ids for one in self.calls if isinstance(one, GenerateCall)]


class Servers:
    """A pool over servers that a test makes."""

    def __init__(self, *names: str, lookup: endpoint.Lookup = endpoint.look_up) -> None:
        self.metrics = Metrics()
        self.by_name: dict[str, FakeServer] = {}
        sources = [Address(f"{name}:1") for name in names]
        self.pool = TritonPool(sources, self.metrics, connect=self._connect, lookup=lookup)
        self.pool.start()
        self.recovering = self._runner(5.0)
        self.direct = self._runner(0.0)
        """Raises what does not lead to another server at once."""

    def _runner(self, wait_s: float) -> CallRunner:
        settings = GatewaySettings(recovery_timeout=wait_s)
        return CallRunner(self.pool, settings, self.metrics, LocalCounts())

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(self.metrics, "/route", 5.0)

    async def infer(self, made: InferCall) -> None:
        async def infer(share: Share, left_s: float) -> Outputs:
            return await share.endpoint.server.infer(made, left_s)

        await self.direct.run(made, 5.0, infer)

    async def generate(self, made: GenerateCall) -> Finished:
        return await self.direct.generate(made, self.times)

    def _connect(self, address: str) -> FakeServer:
        return self.by_name.setdefault(address.removesuffix(":1"), FakeServer())

    def __getitem__(self, number: int) -> FakeServer:
        return list(self.by_name.values())[number]

    async def tokens(self, made: GenerateCall, runner: CallRunner | None = None) -> list[int]:
        """The tokens of a stream, which goes on after losses."""
        taken: list[int] = []
        await self.take(made, taken, runner or self.recovering)
        return taken

    async def take(self, made: GenerateCall, taken: list[int], runner: CallRunner) -> None:
        async def take(tokens: TokenChunk) -> bool:
            taken.extend(tokens.token_ids)
            return True

        async with asyncio.timeout(10):
            await runner.stream(made, self.times, take)

    def value(self, name: str, host: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            f"triptych_endpoint_{name}", {"endpoint": f"{host}:1"}
        )


@pytest.fixture
async def make() -> AsyncGenerator[Callable[..., Servers], None]:
    made: list[Servers] = []

    def make(*names: str, **options: endpoint.Lookup) -> Servers:
        made.append(Servers(*names, **options))
        return made[-1]

    yield make
    for each in made:
        await each.direct.close()


Make = Callable[..., Servers]
TWO = ("127.0.0.1", "127.0.0.2")


async def test_calls_go_to_the_server_with_the_least_outstanding_tokens(make: Make) -> None:
    servers = make(*TWO)
    for one in servers.by_name.values():
        one.hold = asyncio.Event()
    work = [asyncio.create_task(servers.generate(call(1, max_new_tokens=1000)))]
    await until(lambda: servers[0].running == 1)
    for number in range(1, 4):  # together less than the first
        made = call(*range(3), max_new_tokens=100)
        work.append(asyncio.create_task(servers.generate(made)))
        await until(lambda number=number: servers[1].running == number)
    assert [one.tokens for one in servers.pool.endpoints] == [1001, 309]
    for one in servers.by_name.values():
        one.hold.set()
    await asyncio.gather(*work)
    assert [(one.tokens, one.in_flight) for one in servers.pool.endpoints] == [(0, 0)] * 2


async def test_servers_without_work_take_turns(make: Make) -> None:
    servers = make(*TWO)
    for _ in range(6):
        await servers.infer(infer_call())
    assert [len(one.calls) for one in servers.by_name.values()] == [3, 3]


async def test_prompts_with_one_beginning_go_to_one_server_until_it_has_too_much(
    make: Make,
) -> None:
    servers = make(*TWO, "127.0.0.3")
    start = tuple(range(PREFIX_TOKENS))
    for number in range(9):
        await servers.generate(call(*start, number))
    counts = [len(one.calls) for one in servers.by_name.values()]
    assert sorted(counts) == [0, 0, 9]
    loaded = servers.pool.endpoints[counts.index(9)]
    loaded.tokens = 10_000
    others = [one for one in servers.pool.endpoints if one is not loaded]
    assert choose(servers.pool.endpoints, call(*start, 1)) in others
    places = {choose(others, call(number, *start)).name for number in range(20)}
    assert places == {one.name for one in others}, "other prefixes go elsewhere"


async def test_server_that_goes_moves_its_own_prefixes_alone(make: Make) -> None:
    servers = make(*TWO, "127.0.0.3").pool.endpoints
    calls = [call(number, *range(PREFIX_TOKENS)) for number in range(40)]
    before = [choose(servers, each) for each in calls]
    after = [choose(servers[:2], each) for each in calls]
    assert servers[2] in before
    pairs = zip(before, after, strict=True)
    assert all(old is new for old, new in pairs if old is not servers[2])


async def test_stream_goes_on_at_the_next_token_on_another_server(make: Make) -> None:
    servers = make(*TWO)
    servers[0].steps = asyncio.Semaphore(2)
    work = asyncio.create_task(servers.tokens(call(*range(9))))
    await until(lambda: servers[0].steps.locked())
    await until(lambda: servers.pool.endpoints[0].in_flight == 1)
    servers[0].state = Liveness.UNREACHABLE
    servers[0].steps.release()
    assert await work == list(range(9))
    assert servers[1].streamed == [(0, 1)]


async def test_refused_call_goes_to_another_server_at_once(make: Make) -> None:
    servers = make(*TWO)
    servers[0].failures[MODEL] = refused(is_not_loaded=True)
    servers[0].unloaded.add(MODEL)
    for _ in range(4):
        await servers.infer(infer_call())
    assert [len(one.calls) for one in servers.by_name.values()] == [1, 4], "then it is avoided"
    servers[0].failures.clear()
    servers[0].unloaded.clear()
    await until(lambda: servers.pool.endpoints[0].takes((MODEL, 1)))


async def test_model_that_no_server_has_is_refused_as_by_one(make: Make) -> None:
    servers = make(*TWO)
    for one in servers.by_name.values():
        one.failures[MODEL] = refused(is_not_loaded=True)
    with pytest.raises(Unavailable) as caught:
        await servers.infer(infer_call())
    assert caught.value.is_not_loaded
    assert [len(one.calls) for one in servers.by_name.values()] == [1, 1]


async def test_dead_process_that_is_still_reported_as_ready_is_awaited(make: Make) -> None:
    servers = make("127.0.0.1")
    servers[0].failures[MODEL] = refused(is_loss=True, is_unnoticed=True)

    work = asyncio.create_task(servers.recovering.infer(infer_call(), 5.0))
    await until(lambda: servers[0].calls)
    servers[0].failures.clear()
    await asyncio.sleep(0.03)
    assert len(servers[0].calls) == 1, "the dead process is reported as ready"
    servers[0].incarnations = "1"
    await work
    assert len(servers[0].calls) == 2


async def test_server_that_does_not_respond_is_avoided_and_returns_slowly(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "LOST_S", 0.01)
    servers = make(*TWO)
    first, second = servers.pool.endpoints
    servers[0].state = Liveness.UNREACHABLE
    await until(lambda: not first.is_up)
    for _ in range(4):
        await servers.infer(infer_call())
    assert [len(one.calls) for one in servers.by_name.values()] == [0, 4]
    await until(lambda: servers.value("up", "127.0.0.1") == 0)
    assert servers.value("ejections_total", "127.0.0.1") == 1
    await until(lambda: servers[0].ended)  # calls that run there are lost after a while
    servers[0].state = Liveness.LIVE
    await until(lambda: first.is_up)
    second.tokens = 300
    assert choose(servers.pool.endpoints, call(max_new_tokens=97)) is second, "100 / 0.1 > 400"
    monkeypatch.setattr(endpoint, "SLOW_START_S", 1e-6)
    assert choose(servers.pool.endpoints, call(max_new_tokens=97)) is first
    assert servers[1].ended == 0


async def test_only_server_is_used_though_it_does_not_respond(make: Make) -> None:
    servers = make("127.0.0.1")
    (only,) = servers.pool.endpoints
    servers[0].state = Liveness.STOPPING
    await until(lambda: not only.is_up)
    await servers.infer(infer_call())
    assert await servers.tokens(call(*range(4))) == [0, 1, 2, 3], "it finishes what it takes"
    assert servers[0].streamed == [None]
    assert not servers[0].ended


async def test_streams_leave_a_server_that_shuts_down(make: Make) -> None:
    servers = make(*TWO)
    servers[0].steps = asyncio.Semaphore(3)
    work = asyncio.create_task(servers.tokens(call(*range(9))))
    await until(lambda: servers[0].steps.locked())
    servers[0].state = Liveness.STOPPING
    await until(lambda: not servers.pool.endpoints[0].is_up)
    servers[0].steps.release()
    assert await work == list(range(9))
    assert servers[1].streamed == [(0, 1, 2, 3)]
    assert servers[0].cancelled == 1, "its sequence is ended"


ELSEWHERE, RAISED = "another server", "raised"
ACTS: list[tuple[dict[str, bool], bool, int, str]] = [
    ({}, False, 1, ELSEWHERE),
    ({}, False, 0, RAISED),
    ({}, True, 1, RAISED),
    ({}, True, 0, RAISED),
    ({"is_not_loaded": True}, False, 1, ELSEWHERE),
    ({"is_not_loaded": True}, False, 0, RAISED),
    ({"is_not_loaded": True}, True, 1, RAISED),
    ({"is_loss": True}, False, 1, RAISED),
    ({"is_loss": True}, True, 1, RAISED),
    ({"is_loss": True, "is_unnoticed": True}, False, 1, RAISED),
    ({"is_moved": True}, True, 1, RAISED),
]
"""Failure, whether the stream has begun, servers left → what happens."""


@pytest.mark.parametrize(
    ("kind", "flags", "has_begun", "others", "act"),
    [
        (kind, *row)
        for row in ACTS
        for kind in ("stream", "generate")
        if kind == "stream" or not row[1]  # what is not streamed is sent when it is whole
    ],
)
async def test_what_a_failure_leads_to(
    make: Make, kind: str, flags: dict[str, bool], has_begun: bool, others: int, act: str
) -> None:
    """What is raised at once here leads to a wait where calls are recovered."""
    servers = make(*TWO[: 1 + others])
    made = call(*range(4))
    failure = refused(**flags)
    if has_begun:
        servers[0].breaks[2] = failure
    else:
        servers[0].failures[MODEL] = failure
    taken: list[int] = []

    async def run() -> None:
        if kind == "generate":
            taken.extend((await servers.generate(made)).best.token_ids)
            return
        await servers.take(made, taken, servers.direct)

    if act == RAISED:
        with pytest.raises(Unavailable) as caught:
            await run()
        assert caught.value is failure
        assert taken == ([0, 1] if has_begun else [])
    else:
        await run()
        assert taken == [0, 1, 2, 3]
    calls = [len(one.calls) for one in servers.by_name.values()]
    assert calls == [1, int(act == ELSEWHERE)][: 1 + others]


LOSS, MOVED = {"is_loss": True}, {"is_moved": True}
SHARED, ALONE = False, True
POLICY: list[tuple[list[tuple[dict[str, bool], bool]], bool, bool, Act]] = [
    ([({}, SHARED)], False, True, Act.OTHER_SERVER),
    ([({}, SHARED)], False, False, Act.WAIT),
    ([({}, SHARED)], True, True, Act.WAIT),
    ([({"is_not_loaded": True}, SHARED)], False, False, Act.WAIT),
    ([({}, SHARED)] * 9, False, False, Act.WAIT),
    ([(MOVED, SHARED)] * 9, True, True, Act.WAIT),
    ([(LOSS, SHARED)], False, True, Act.WAIT),
    ([(LOSS, ALONE)], False, False, Act.WAIT),
    ([(LOSS, SHARED)] * 2, True, True, Act.WAIT),
    ([(LOSS, SHARED)] * 3, True, True, Act.RAISE),
    ([(LOSS, SHARED), ({}, SHARED), (MOVED, ALONE), (LOSS, SHARED)], True, False, Act.WAIT),
    ([(LOSS, ALONE), (LOSS, SHARED)], False, True, Act.QUARANTINE),
    ([(LOSS, SHARED), (LOSS, ALONE)], False, True, Act.QUARANTINE),
    ([(LOSS, SHARED), (LOSS, SHARED), (LOSS, ALONE)], True, True, Act.QUARANTINE),
]
"""Failures, whether the last attempt has begun, servers left → what the last failure leads to."""


@pytest.mark.parametrize(("failures", "has_begun", "has_others", "act"), POLICY)
@pytest.mark.parametrize("wait_s", [0.0, 5.0])
def test_what_failures_lead_to(
    failures: list[tuple[dict[str, bool], bool]],
    has_begun: bool,
    has_others: bool,
    act: Act,
    wait_s: float,
) -> None:
    policy = RetryPolicy(60.0, wait_s, Clock())
    policy.has_begun = has_begun
    for flags, was_alone in failures:
        found = policy.act(refused(**flags), has_others=has_others, was_alone=was_alone)
    assert found is (act if wait_s or act is Act.OTHER_SERVER else Act.RAISE)


def test_a_move_to_another_server_starts_the_wait_for_a_model_anew() -> None:
    clock = Clock()
    policy = RetryPolicy(60.0, 5.0, clock)
    for now_s, failure, act in (
        (0.0, refused(), Act.WAIT),
        (4.0, refused(), Act.WAIT),
        (4.5, refused(is_moved=True), Act.WAIT),
        (6.0, refused(), Act.WAIT),
        (10.0, refused(), Act.WAIT),
        (11.0, refused(), Act.RAISE),
    ):
        clock.now_s = now_s
        assert policy.act(failure, has_others=False, was_alone=False) is act


@pytest.mark.parametrize("flags", [{}, {"is_not_loaded": True}, {"is_loss": True}])
async def test_no_token_is_repeated_whatever_ends_a_stream(
    make: Make, flags: dict[str, bool]
) -> None:
    servers = make(*TWO)
    servers[0].breaks[3] = refused(**flags)
    assert await servers.tokens(call(*range(9))) == list(range(9))
    assert servers[1].streamed == [(0, 1, 2)]


async def test_stream_that_gets_tokens_each_time_survives_more_losses(make: Make) -> None:
    servers = make("127.0.0.1")
    places = range(1, MAX_INTERRUPTIONS + 1)
    servers[0].breaks.update({place: refused(is_loss=True) for place in places})
    assert await servers.tokens(call(*range(9))) == list(range(9))
    assert servers[0].streamed == [None, *(tuple(range(place)) for place in places)]
    servers[0].failures[MODEL] = refused(is_loss=True)
    with pytest.raises(Quarantined):
        await servers.tokens(call(*range(9)))
    assert len(servers[0].streamed) == 1 + len(places) + 2, "without tokens all of them count"


async def test_names_are_looked_up_again(make: Make) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]

    async def lookup(name: str) -> list[str]:
        assert name == "triton"
        if not hosts:
            raise OSError("no resolver")
        return hosts

    servers = make("triton", lookup=lookup)
    with pytest.raises(Unavailable, match="no Triton is found at triton:1"):
        await servers.infer(infer_call())
    await until(lambda: len(servers.pool.endpoints) == 2)
    first = servers.pool.endpoints[0]
    servers[0].hold = asyncio.Event()
    running = asyncio.create_task(servers.infer(infer_call()))
    await until(lambda: first.in_flight)
    hosts[:] = ["127.0.0.2", "127.0.0.3"]
    await until(lambda: len(servers.pool.endpoints) == 3)
    assert not first.is_up, "it finishes what it has"
    assert not servers[0].is_closed
    servers[0].hold.set()
    await running
    await until(lambda: first not in servers.pool.endpoints)
    assert servers[0].is_closed
    assert servers.value("up", "127.0.0.1") is None
    hosts.clear()
    await asyncio.sleep(0.02)
    names = [one.name for one in servers.pool.endpoints]
    assert names == ["127.0.0.2:1", "127.0.0.3:1"], "a resolver that fails removes none"


async def test_a_server_that_has_left_is_closed_when_its_polls_have_ended(make: Make) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]

    async def lookup(name: str) -> list[str]:
        return hosts

    servers = make("triton", lookup=lookup)
    await until(lambda: len(servers.pool.endpoints) == 2)
    first, answer = servers.pool.endpoints[0], asyncio.Event()

    class Slow(FakeServer):
        async def is_ready(self, model: str, version: int) -> bool:
            await answer.wait()
            assert not self.is_closed
            return False

        async def served_version(self, model: str) -> int | None:
            await answer.wait()
            assert not self.is_closed
            return 7

    servers[0].__class__ = Slow
    polls = [
        asyncio.create_task(servers.pool.served_version(MODEL)),
        asyncio.create_task(first.is_ready(MODEL, 1)),
        asyncio.create_task(first.perform(infer_call(), 5.0)),
    ]
    servers[0].hold = asyncio.Event()
    await until(lambda: servers[0].running)
    hosts[:] = ["127.0.0.2"]
    await until(lambda: not first.is_up)
    await asyncio.sleep(0.03)
    assert not servers[0].is_closed
    servers[0].hold.set()
    answer.set()
    await asyncio.gather(*polls)
    await until(lambda: servers[0].is_closed)
    assert first not in servers.pool.endpoints


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), RuntimeError(), UnicodeError()])
async def test_a_failure_ends_neither_the_watch_of_a_server_nor_the_lookup(
    make: Make, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    hosts, failures = ["127.0.0.1"], [failure]

    async def lookup(name: str) -> list[str]:
        if failures:
            raise failures.pop()
        return hosts

    servers = make("triton", lookup=lookup)
    await until(lambda: servers.pool.endpoints)

    class Failing(FakeServer):
        async def liveness(self) -> Liveness:
            if failures:
                raise failures.pop()
            return Liveness.STOPPING

    failures.append(failure)
    servers[0].__class__ = Failing
    await until(lambda: not servers.pool.endpoints[0].is_up)
    hosts[:] = ["127.0.0.2"]
    await until(lambda: servers[0].is_closed)


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (({1}, {1}, {1}), 1),
        (({2, 1}, {1}, {1}), 1),
        (({2, 1}, {2, 1}, {2, 1}), 2),
        (({2}, {1}), 2),
        (({2}, {1}, {1}), 1),
        (({2}, {2}, {1}), 2),
    ],
)
async def test_version_that_most_servers_have_is_served(
    make: Make, served: tuple[set[int], ...], version: int
) -> None:
    servers = make(*(f"127.0.0.{number}" for number in range(1, len(served) + 1)))
    for number, versions in enumerate(served):
        servers[number].served[MODEL] = max(versions)
        servers[number].retired = {(MODEL, one) for one in {1, 2} - versions}
    assert await servers.pool.served_version(MODEL) == version


async def test_calls_of_a_version_go_where_it_is_loaded(make: Make) -> None:
    servers = make(*TWO)
    servers[0].retired.add((MODEL, 2))
    for _ in range(3):
        await servers.infer(infer_call(version=2))
    assert len(servers[1].calls) == 3
    assert servers.pool.replicas(MODEL, 2) == 1
    assert servers.pool.replicas(MODEL, 1) == 2


def test_only_names_are_looked_up() -> None:
    fixed = ("127.0.0.1:8001", "[::1]:8001", "localhost:8001", "dns://10.0.0.2/triton:8001")
    fixed += ("dns:///triton:8001", "unix:/run/triton", "unix:triton")
    assert not any(Address(each).is_name for each in fixed)
    name = Address("triton-headless:8001", "triton-headless:8002")
    assert name.is_name
    assert name.at("10.0.0.7").grpc == "10.0.0.7:8001"
    assert name.at("10.0.0.7").metrics == "10.0.0.7:8002"
    assert name.at("fd00::7").grpc == "[fd00::7]:8001"


async def test_each_server_of_a_name_has_one_address() -> None:
    assert await endpoint.look_up("localhost") == ["127.0.0.1"], "of IPv4, where it has both"


async def test_absence_ends_so_that_no_version_is_watched_for_ever() -> None:
    server, clock = FakeServer(), Clock()
    one = Endpoint(endpoint.Address("a:1"), server, FakeStats(), clock=clock)
    server.unloaded.add(MODEL)
    await one.note(infer_call(), refused(is_not_loaded=True))
    clock.now_s = endpoint.ABSENT_S + 1
    await one.check()
    assert one.takes((MODEL, 1)), "the next call shows whether it is there"
