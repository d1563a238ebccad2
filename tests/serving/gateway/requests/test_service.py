"""From a task request to a response or a stream, without a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from inference.errors import (
    DeadlineExceeded,
    Overloaded,
    ServingError,
    Unavailable,
    UnknownModel,
    UnknownRoute,
)
from inference.generation import Overrides
from inference.tasks import TASKS
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.items import finished_of
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome
from inference.tasks.shared.served_task import Plan
from inference.tasks.shared.streaming import Segment, StreamedItem, Streaming
from serving.gateway.admission.admission import LocalCounts, Usage
from serving.gateway.admission.auth import KEY, ApiKey, Resource
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.chunk_stream import merge
from serving.gateway.requests.service import Service, TaskRequest
from serving.settings.gateway_settings import GatewaySettings
from tests.inference.tiny_models import WordTokenizer
from tests.serving.gateway.conftest import (
    GREEDY,
    FakeInference,
    Gateway,
    MakeGateway,
    loaded,
    pool_of,
)
from tests.serving.waiting import until
from triptych.messages import Chunk, Generation, ItemError, Response, TokenLogprob
from triptych.messages import Usage as MessagesUsage
from triptych.tasks.generate import GenerateRequest, GenerateResponse
from triptych.tasks.translate import TranslateRequest

TOKENIZER = WordTokenizer()
IDS = TOKENIZER.encode("one two three")
ROUTE = "/route"


@dataclass
class FakePlan(Plan):
    """Calls of one version; the response has a text for each that succeeded."""

    version: int = 1
    models: tuple[str, ...] = ("m",)
    calls: Sequence[GenerateCall] = field(init=False)

    def __post_init__(self) -> None:
        inputs = {"prompt_ids": np.array(IDS)}
        self.calls = [GenerateCall(m, self.version, inputs, Overrides()) for m in self.models]

    def finish(self, outcomes: Sequence[Outcome]) -> Response[Generation]:
        done = [one for one in outcomes if not isinstance(one, ServingError)]
        if not done:
            finished_of(outcomes[0])
        data = [Generation(index=n, text="done") for n in range(len(done))]
        return GenerateResponse(model=str(self.version), data=data)

    def streaming(self) -> Streaming:
        items = [
            StreamedItem((Segment(number, lambda: IncrementalText(TOKENIZER)),))
            for number in range(len(self.calls))
        ]
        return Streaming(items, self.calls)


class FakePlanner:
    """Plans for version 1, and then for another, if there is one."""

    def __init__(self, first: FakePlan, second: FakePlan | None = None) -> None:
        self.first, self.second = first, second
        self.refused: list[Call] = []

    async def plan(self, reserve: Any, refused: Call | None) -> Plan | None:
        if refused is None:
            return self.first
        self.refused.append(refused)
        return self.second


def service_over(inference: FakeInference, counts: LocalCounts, **settings: object) -> Service:
    metrics, made = Metrics(), GatewaySettings(**settings)
    return Service(Catalog(), pool_of(inference, metrics), made, metrics, counts)


class Running:
    """A service over the fake, and what it has admitted."""

    def __init__(self, **settings: object) -> None:
        self.inference, self.counts = FakeInference(), LocalCounts()
        settings = {"recovery_timeout": 0, **settings}
        self.service = service_over(self.inference, self.counts, **settings)

    @property
    def held(self) -> tuple[int, int]:
        """Admitted requests and tokens."""
        return self.counts.total().requests, self.counts.total().tokens

    async def text(self, planner: FakePlanner) -> str:
        """The text of a stream that is read to its end."""
        stream = self.service.stream_plan(ROUTE, planner.plan)
        try:
            return "".join(
                [c.text for chunks in [b async for b in stream.batches()] for c in chunks]
            )
        finally:
            await stream.close()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running(max_concurrent_tokens=len(IDS))
    yield made
    await made.service.close()


async def test_second_attempt_takes_the_place_of_the_first(running: Running) -> None:
    """There are tokens for one attempt: those of the first have been released."""
    planner = FakePlanner(FakePlan(1), FakePlan(2))
    running.inference.retired.add(("m", 1))
    response, _ = await running.service.answer_plan(ROUTE, planner.plan)
    assert response.model == "2"
    assert [(call.model, call.version) for call in planner.refused] == [("m", 1)]
    assert await running.text(planner) == "one two three"
    assert [call.version for call in running.inference.calls] == [1, 2, 1, 2]
    assert running.held == (0, 0)


async def test_there_is_no_third_attempt(running: Running) -> None:
    planner = FakePlanner(FakePlan(1), FakePlan(2))
    running.inference.retired |= {("m", 1), ("m", 2)}
    with pytest.raises(Unavailable):
        await running.service.answer_plan(ROUTE, planner.plan)
    with pytest.raises(Unavailable):
        await running.text(planner)
    assert [call.version for call in running.inference.calls] == [1, 2, 1, 2]
    assert running.held == (0, 0)


async def test_without_another_version_the_calls_that_succeeded_count() -> None:
    running = Running()
    planner = FakePlanner(FakePlan(1, ("m", "gone")))
    running.inference.retired.add(("gone", 1))
    response, _ = await running.service.answer_plan(ROUTE, planner.plan)
    assert len(response.data) == 1
    assert len(running.inference.calls) == 2
    running.inference.steps = asyncio.Semaphore(0)
    with pytest.raises(Unavailable):
        await running.text(planner)
    await running.service.close()


async def test_refusal_before_the_first_chunk_ends_the_streams_other_calls() -> None:
    running = Running()
    running.inference.steps = asyncio.Semaphore(0)
    running.inference.retired.add(("gone", 1))
    planner = FakePlanner(FakePlan(1, ("m", "gone")), FakePlan(2))
    stream = running.service.stream_plan(ROUTE, planner.plan)
    await until(lambda: [call.version for call in running.inference.calls] == [1, 1, 2])
    assert (running.inference.cancelled, running.inference.running) == (1, 1)
    await stream.close()
    assert running.held == (0, 0)
    await running.service.close()


async def test_stream_of_which_another_call_has_sent_is_not_planned_again() -> None:
    """The other call sends in the turn of the event loop in which the first is refused."""
    running = Running()
    running.inference.retired.add(("gone", 1))
    planner = FakePlanner(FakePlan(1, ("gone", "m")), FakePlan(2))
    with pytest.raises(Unavailable):
        await running.text(planner)
    assert planner.refused == []
    assert {call.version for call in running.inference.calls} == {1}
    assert running.held == (0, 0)
    await running.service.close()


async def test_other_errors_are_not_attempted_again(running: Running) -> None:
    planner = FakePlanner(FakePlan(1), FakePlan(2))
    running.inference.failures["m"] = Unavailable("restarting")
    with pytest.raises(Unavailable):
        await running.service.answer_plan(ROUTE, planner.plan)
    with pytest.raises(Unavailable):
        await running.text(planner)
    assert planner.refused == []
    assert running.held == (0, 0)


async def test_stream_holds_its_admission_until_it_is_closed() -> None:
    running = Running(max_concurrent_requests=1)
    planner = FakePlanner(FakePlan(1))
    stream = running.service.stream_plan(ROUTE, planner.plan)
    assert [chunk.text async for batch in stream.batches() for chunk in batch]
    assert running.held == (1, 0)
    with pytest.raises(Overloaded):
        await running.service.answer_plan(ROUTE, planner.plan)
    await stream.close()
    assert running.held == (0, 0)
    await running.service.close()


async def test_time_limit_includes_the_plan() -> None:
    running = Running(request_timeout=0.01)

    class Endless(FakePlanner):
        async def plan(self, reserve: Any, refused: Call | None) -> Plan:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(DeadlineExceeded):
        await running.service.answer_plan(ROUTE, Endless(FakePlan()).plan)
    assert running.held == (0, 0)
    await running.service.close()


async def test_shutdown_ends_answers_and_streams_with_an_error() -> None:
    running = Running()
    running.inference.hold = asyncio.Event()
    planner = FakePlanner(FakePlan(1))
    answer = asyncio.create_task(running.service.answer_plan(ROUTE, planner.plan))
    stream = running.service.stream_plan(ROUTE, planner.plan)
    await until(lambda: running.inference.running == 2)
    assert not await running.service.admission.drained(0)
    assert running.service.admission.abort_all() == 2
    with pytest.raises(Unavailable):
        await answer
    with pytest.raises(Unavailable):
        await stream.first()
    await stream.close()
    assert await running.service.admission.drained(0)
    assert (running.inference.running, running.held) == (0, (0, 0))
    await running.service.close()


async def test_draining_refuses_before_anything_is_planned(running: Running) -> None:
    running.service.is_draining = True
    planner = FakePlanner(FakePlan(1))
    for begin in (
        running.service.check,
        lambda: running.service.stream_plan(ROUTE, planner.plan),
    ):
        with pytest.raises(Unavailable):
            begin()
    with pytest.raises(Unavailable):
        await running.service.answer_plan(ROUTE, planner.plan)
    assert running.inference.calls == []


class Elsewhere(LocalCounts):
    """Counts of a gateway beside others, at which a key uses something."""

    def __init__(self, used: Usage) -> None:
        super().__init__()
        self.used = used

    async def of_key_everywhere(self, name: str) -> Usage:
        everywhere = Usage()
        for each in (self.used, self.of_key(name)):
            everywhere.add(each)
        return everywhere


@pytest.mark.parametrize(
    ("resource", "used"),
    [
        ("requests", Usage(requests=10)),
        ("tokens", Usage(tokens=8)),
        ("pixels", Usage(pixels=6)),
        ("bytes", Usage(bytes=11)),
    ],
)
async def test_what_a_key_uses_at_other_gateways_counts(resource: Resource, used: Usage) -> None:
    """Each limit is 10; the request is one, with three tokens and five pixels."""
    counts = Elsewhere(used)
    service = service_over(FakeInference(), counts)
    limits: dict[str, Any] = {f"max_concurrent_{resource}": 10}

    class WithPixels(FakePlanner):
        async def plan(self, reserve: Any, refused: Call | None) -> Plan:
            await reserve(5)
            return self.first

    async def answer() -> None:
        await service.answer_plan(ROUTE, WithPixels(FakePlan(1)).plan)

    token = KEY.set(ApiKey(name="alice", sha256="0" * 64, **limits))
    try:
        with pytest.raises(Overloaded, match=f"{resource} with this key"):
            await answer()
        assert counts.of_key("alice") == Usage(), "what was refused is not counted"
        counts.used = Usage()
        await answer()
        counts.used = Usage(100, 100, 100, 100)
        KEY.set(ApiKey(name="bob", sha256="0" * 64))  # without limits of its own
        await answer()
    finally:
        KEY.reset(token)
        await service.close()


def generation(**fields: object) -> TaskRequest:
    return TaskRequest(TASKS["generate"], GenerateRequest(prompts=["one two"], **fields), ROUTE)


async def test_response_and_stream_of_a_request_have_the_same_text(gateway: Gateway) -> None:
    response, _ = await gateway.service.answer(generation())
    stream = gateway.service.stream(generation())
    chunks = [chunk async for batch in stream.batches() for chunk in batch]
    await stream.close()
    assert response.model == "tiny-generate"
    assert "".join(chunk.text for chunk in chunks) == response.data[0].text == "one two"


async def test_unknown_model_is_refused_before_a_stream_begins(gateway: Gateway) -> None:
    with pytest.raises(UnknownModel):
        await gateway.service.answer(generation(model="missing"))
    with pytest.raises(UnknownModel):
        gateway.service.stream(generation(model="missing"))
    assert gateway.inference.calls == []


async def test_request_keeps_the_version_that_it_was_planned_for(gateway: Gateway) -> None:
    stream = gateway.service.stream(generation())
    gateway.service.catalog.put(loaded("generate", generation=GREEDY, version=4))
    await stream.first()
    await stream.close()
    await gateway.service.answer(generation())
    assert [call.version for call in gateway.inference.calls] == [3, 4]


async def test_request_that_names_no_glossary_is_left_as_it_is(gateway: Gateway) -> None:
    request = generation()
    assert await gateway.service.add_stored_terms(request) is request


async def test_name_of_a_glossary_is_refused_where_none_are_stored(gateway: Gateway) -> None:
    message = TranslateRequest(texts=["hola"], glossary_name="terms")
    with pytest.raises(UnknownRoute):
        await gateway.service.add_stored_terms(TaskRequest(TASKS["translate"], message, ROUTE))


async def test_closed_service_has_closed_its_connection(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    await gateway.service.close()
    assert gateway.inference.is_closed


def test_chunks_that_are_ready_together_are_merged() -> None:
    entry = TokenLogprob(token="b", logprob=-1.0)
    chunks = [
        Chunk(index=0, text="a"),
        Chunk(index=1, text="x", logprobs=[entry]),
        Chunk(index=0, text="b"),
        Chunk(index=1, text="y", logprobs=[entry]),
        Chunk(index=0, finish_reason="stop", usage=MessagesUsage(prompt_tokens=1)),
    ]
    assert merge(chunks) == [
        Chunk(index=1, text="xy", logprobs=[entry, entry]),
        Chunk(index=0, text="ab", finish_reason="stop", usage=MessagesUsage(prompt_tokens=1)),
    ]
    assert merge([]) == []


def test_an_error_does_not_take_the_text_before_it() -> None:
    error = ItemError(type="deadline_exceeded", message="late")
    chunks = [Chunk(index=0, text="a"), Chunk(index=1, text="x"), Chunk(index=0, text="b")]
    found = merge([*chunks, Chunk(index=0, error=error), Chunk(index=1, text="y")])
    assert [(one.index, one.text, one.error) for one in found] == [
        (0, "ab", None),
        (0, "", error),
        (1, "xy", None),
    ]
