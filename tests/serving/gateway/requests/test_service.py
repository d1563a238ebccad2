"""From a task request to a response or a stream, without a protocol."""

from __future__ import annotations

import pytest

from inference.errors import UnknownModel, UnknownRoute
from inference.tasks import TASKS
from serving.gateway.requests.service import TaskRequest
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway, loaded
from triptych.tasks.generate import GenerateRequest
from triptych.tasks.translate import TranslateRequest

ROUTE = "/route"


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
    assert await gateway.service.completed(request) is request


async def test_name_of_a_glossary_is_refused_where_none_are_stored(gateway: Gateway) -> None:
    message = TranslateRequest(texts=["hola"], glossary_name="terms")
    with pytest.raises(UnknownRoute):
        await gateway.service.completed(TaskRequest(TASKS["translate"], message, ROUTE))


async def test_closed_service_has_closed_its_connection(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    await gateway.service.close()
    assert gateway.inference.is_closed
