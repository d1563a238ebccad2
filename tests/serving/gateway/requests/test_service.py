"""From a task request to a response or a stream, without a protocol, and as users send them."""

from __future__ import annotations

import asyncio
import base64
import io
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from inference.bundle.inputs import Regions
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
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome, finished_of
from inference.tasks.shared.served_task import Plan
from inference.tasks.shared.streaming import Segment, StreamedItem, Streaming
from serving.gateway.admission.admission import LocalCounts, Usage
from serving.gateway.admission.auth import KEY, ApiKey, Resource
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.chunk_stream import merge
from serving.gateway.requests.service import TIMEOUT_S, Service, TaskRequest
from serving.settings.gateway_settings import GatewaySettings
from tests.inference.tiny_models import (
    IMAGE,
    WordTokenizer,
    image_file,
    picture_reader,
    segmenter,
    served,
)
from tests.serving import document_samples
from tests.serving.gateway.conftest import (
    GREEDY,
    RED,
    FakeInference,
    Gateway,
    MakeGateway,
    all_models,
    error_of,
    loaded,
    pool_of,
    text_models,
)
from tests.serving.waiting import until
from triptych import documents
from triptych.messages import (
    Chunk,
    Generation,
    ItemError,
    ModelList,
    Response,
    TokenLogprob,
)
from triptych.messages import Usage as MessagesUsage
from triptych.tasks.caption import CaptionResponse
from triptych.tasks.classify import ClassifyResponse
from triptych.tasks.generate import GenerateRequest, GenerateResponse
from triptych.tasks.segment import SegmentResponse
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
    assert not await running.service.admission.wait_until_drained(0)
    assert running.service.admission.abort_all() == 2
    with pytest.raises(Unavailable):
        await answer
    with pytest.raises(Unavailable):
        await stream.first()
    await stream.close()
    assert await running.service.admission.wait_until_drained(0)
    with pytest.raises(Unavailable):
        running.service.admission.check()
    assert (running.inference.running, running.held) == (0, (0, 0))
    await running.service.close()


async def test_draining_refuses_before_anything_is_planned(running: Running) -> None:
    running.service.is_draining = True
    planner = FakePlanner(FakePlan(1))
    for begin in (running.service.check, lambda: running.service.stream_plan(ROUTE, planner.plan)):
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


async def test_caption_takes_base64_and_data_uris(gateway: Gateway) -> None:
    body = {"images": [RED, f"data:image/png;base64,{RED}"], "prompt": "a"}
    response = await gateway.http.post("/v1/caption", json=body)
    answer = CaptionResponse.model_validate_json(response.content)
    assert [item.text for item in answer.data] == ["a picture", "a picture"]


async def test_one_label_over_multipart_is_a_list(gateway: Gateway) -> None:
    files = [("images", ("a.png", image_file("red")))]
    response = await gateway.http.post("/v1/zero-shot", files=files, data={"labels": "red"})
    assert response.json()["data"][0]["labels"][0]["score"] == 1.0


async def test_second_request_embeds_images_only(gateway: Gateway) -> None:
    body = {"images": RED, "labels": ["red", "blue"]}
    await gateway.http.post("/v1/zero-shot", json=body)
    gateway.inference.calls.clear()
    await gateway.http.post("/v1/zero-shot", json=body)
    assert [call.model for call in gateway.inference.calls] == ["tiny-zero-shot"]


async def test_masks_are_made_of_labels_that_are_embedded_once(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([served(segmenter())])
    body = {"images": RED, "labels": ["a", "b"]}
    first = await gateway.post("/v1/segment", json=body)
    (item,) = SegmentResponse.model_validate_json(first.content).data
    assert [mask.label for mask in item.masks or ()] == ["a", "b"]
    assert (item.width, item.height, item.mask_width, item.mask_height) == (6, 5, 3, 2)
    calls = [call.model for call in gateway.inference.calls]
    assert calls == ["tiny-segment-text", "tiny-segment"]
    files = [("images", ("a.png", image_file("red")))]
    second = await gateway.http.post("/v1/segment", files=files, data={"labels": ["a", "b"]})
    assert second.json() == first.json()
    assert [call.model for call in gateway.inference.calls][2:] == ["tiny-segment"]


async def test_models_lists_tasks_and_limits(make_gateway: MakeGateway) -> None:
    own = {"max_client_batch_size": 7, "max_stop_sequences": 3, "max_best_of": 2}
    gateway = make_gateway(max_input_tokens=10, max_image_pixels=99, **own)
    response = await gateway.http.get("/v1/models")
    listing = ModelList.model_validate_json(response.content)
    by_name = {model.id: model for model in listing.data}
    translator = by_name["tiny-translate"]
    assert translator.languages == [["es", "en"]]
    assert translator.limits.max_input_tokens == 10  # the gateway's is tighter than the model's 12
    assert translator.limits.max_client_batch_size == 7
    assert (translator.limits.max_image_pixels, translator.limits.max_best_of) == (None, None)
    generator = by_name["tiny-generate"]
    assert (generator.limits.max_stop_sequences, generator.limits.max_best_of) == (3, 2)
    assert by_name["tiny-zero-shot"].limits.max_labels == 1000
    assert by_name["tiny-caption"].limits.max_image_pixels == 99


class TestWhichModelAnswers:
    async def ask(self, gateway: Gateway, **fields: str) -> httpx.Response:
        return await gateway.http.post("/v1/translate", json={"texts": "hola", **fields})

    def models(self, *, default: bool = False) -> list:
        return [
            loaded("translate", {"languages": [("es", "en")]}, name="es-en", default=default),
            loaded("translate", {"languages": [("en", "de")]}, name="en-de"),
            loaded("translate", {"languages": [("es", "en")]}, name="es-en-big"),
        ]

    async def test_the_only_one_that_fits(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(self.models())
        assert (await self.ask(gateway, target="de")).json()["model"] == "en-de"

    async def test_the_one_named(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(self.models())
        assert (await self.ask(gateway, model="es-en-big")).json()["model"] == "es-en-big"

    async def test_the_default_among_several(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(self.models(default=True))
        assert (await self.ask(gateway, source="es")).json()["model"] == "es-en"
        assert (await self.ask(gateway)).json()["model"] == "es-en"

    @pytest.mark.parametrize(
        ("fields", "field", "message"),
        [
            ({"source": "es"}, "model", "es-en, es-en-big"),
            ({"source": "fr"}, "source", "en-de, es-en"),
            ({"model": "en-de", "target": "en"}, "target", "^en-de translates en-de only$"),
            ({"model": "tiny-caption"}, "model", "caption"),
        ],
    )
    async def test_none_that_fits_or_several_are_refused_by_name(
        self, make_gateway: MakeGateway, fields: dict[str, str], field: str, message: str
    ) -> None:
        gateway = make_gateway([*self.models(), *all_models()])
        response = await self.ask(gateway, **fields)
        assert (response.status_code, error_of(response)["field"]) == (422, field)
        assert re.search(message, error_of(response)["message"])

    async def test_two_translate_one_after_the_other(
        self, make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = make_gateway(self.models(default=True), request_timeout=60)
        generate, limits, done = gateway.inference._generated, [], []

        def generated(call: GenerateCall) -> Any:
            limits.append(TIMEOUT_S.get())
            ids = call.inputs["source_ids"]
            longer = np.concatenate([ids[:-1], ids]) if call.model == "es-en" else ids
            done.append(generate(replace(call, inputs={**call.inputs, "source_ids": longer})))
            return done[-1]

        monkeypatch.setattr(gateway.inference, "_generated", generated)
        body = {"texts": ["a", " ", "b c"], "source": "es", "via": "en", "target": "de", "n": 2}
        answer = (await gateway.http.post("/v1/translate", json=body)).json()
        first, empty, last = answer["data"]
        assert (first["text"], last["text"]) == ("a a", "b c b c")
        assert [each["index"] for each in answer["data"]] == [0, 1, 2]
        assert len(last["alternatives"]) == 2
        assert "texts.1 is empty" in empty["error"]["message"]
        assert answer["model"] == "es-en+en-de"
        assert [call.model for call in gateway.inference.calls] == ["es-en"] * 2 + ["en-de"] * 2
        assert answer["usage"]["prompt_tokens"] == sum(each.prompt_tokens for each in done)
        assert max(limits[2:]) <= 60 < min(limits[:2])  # what is left of the first leg's

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"source": "es"}, "via needs source and target"),
            ({"source": "es", "target": "en"}, "via needs source and target, and is neither"),
            ({"source": "es", "target": "de", "model": "en-de"}, "model: not of two models"),
            ({"source": "es", "target": "fr"}, "no model translates between those languages"),
        ],
    )
    async def test_what_two_models_cannot_do_is_refused_before_the_first(
        self, fields: dict[str, str], reason: str, make_gateway: MakeGateway
    ) -> None:
        gateway = make_gateway(self.models(default=True))
        response = await self.ask(gateway, via="en", **fields)
        assert response.status_code == 422
        assert reason in error_of(response)["message"]
        assert gateway.inference.calls == []


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([*all_models(), *text_models()])


async def test_texts_and_images_find_their_classifier(gateway: Gateway) -> None:
    texts = await gateway.http.post("/v1/classify", json={"texts": ["a b", "c"], "top_k": 2})
    answer = ClassifyResponse.model_validate_json(texts.content)
    assert answer.model == "tiny-classify"
    assert [len(item.labels) for item in answer.data] == [2, 2]
    files = [("images", ("a.png", image_file("red")))]
    images = await gateway.http.post("/v1/classify", files=files, data={"return_attention": "true"})
    answer = ClassifyResponse.model_validate_json(images.content)
    assert (answer.model, answer.data[0].labels[0].label) == ("tiny-pictures", "red")
    assert answer.data[0].attention is not None


async def test_file_of_regions_takes_the_place_of_a_picture(make_gateway: MakeGateway) -> None:
    """As a part of a form or in JSON; each model names what it reads in the place of the other."""
    spec = IMAGE.model_copy(
        update={"resize": "regions", "regions": Regions(features=3, has_boxes=False)}
    )
    models = [picture_reader(), picture_reader().model_copy(update={"name": "r", "image": spec})]
    gateway = make_gateway([served(each, WordTokenizer()) for each in models])
    file = io.BytesIO()
    np.savez_compressed(file, features=np.array([[1, 2, 3], [3, 2, 1.5]], np.float16))
    data, fields = file.getvalue(), {"texts": ["a b"], "function_to_apply": "none"}

    async def ask(model: str, image: bytes, *, in_form: bool) -> httpx.Response:
        given = fields | {"model": model, "top_k": 3}
        if in_form:
            parts = [("images", ("a.npz", image, "application/octet-stream"))]
            return await gateway.http.post("/v1/classify", files=parts, data=given)
        given |= {"images": [base64.b64encode(image).decode()]}
        return await gateway.http.post("/v1/classify", json=given)

    for in_form in (True, False):
        response = await ask("r", data, in_form=in_form)
        labels = ClassifyResponse.model_validate_json(response.content).data[0].labels
        scores = [255 * each.score for each in sorted(labels, key=lambda each: each.label)]
        assert scores == pytest.approx([3 * 2.25, 2, 2])  # of three tokens
    for model, image, reason in (
        ("r", image_file("red"), "this model reads a .npz file"),
        ("r", data[:-9], "damaged or truncated"),
        (models[0].name, data, "this model reads images"),
    ):
        response = await ask(model, image, in_form=False)
        assert response.status_code == 415
        assert reason in error_of(response)["message"]


async def test_a_list_of_two_is_a_pair(gateway: Gateway) -> None:
    shorts = await gateway.http.post("/v1/classify", json={"pairs": [["a", "b c"]]})
    longs = await gateway.http.post(
        "/v1/classify", json={"pairs": [{"first": "a", "second": "b c"}]}
    )
    assert shorts.json() == longs.json()
    assert shorts.json()["usage"]["prompt_tokens"] == 5


async def test_list_of_other_than_two_texts_is_explained(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/classify", json={"pairs": [["a"]]})
    wanted = "pairs.0: a pair is a list of two texts, this list has 1"
    assert wanted in error_of(response)["message"]


async def test_documents_are_read_as_passages(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "report.docx"
    file.write_bytes(document_samples.word_file())
    lines = ["un título", "hay veinte mesas.", "en el jardín", "nombre", "ana", "fin", "uno"]
    text = "\n".join([*lines, "celda", "12", "pie", "cabecera"])

    async def answers(*passages: str) -> Any:
        body = {"question": "a", "passages": passages, "n": 9}
        return (await gateway.http.post("/v1/answer", json=body)).json()

    found = await answers("a b", documents.encode(file))
    assert found == await answers("a b", text)
    assert {one["passage"] for one in found["data"][0]["answers"]} == {0, 1}


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("data:application/pdf;base64,aaaa", "a type that is not read; supported are: text/html"),
        (f"data:{documents.TYPES['.docx']};base64,aaa", "not base64"),
        (f"data:{documents.TYPES['.docx']};base64,aaaa", "damaged"),
    ],
)
async def test_documents_that_cannot_be_read_are_named(
    uri: str, reason: str, gateway: Gateway
) -> None:
    body = {"question": "a", "passages": ["a b", uri]}
    error = error_of(await gateway.http.post("/v1/answer", json=body))
    assert error["field"] == "passages.1"
    assert reason in error["message"]


async def test_models_list_what_the_tasks_need(gateway: Gateway) -> None:
    listing = ModelList.model_validate_json((await gateway.http.get("/v1/models")).content)
    by_name = {model.id: model for model in listing.data}
    assert by_name["tiny-fill-mask"].mask_token == "picture"
    assert by_name["tiny-fill-mask"].limits.max_top_k == 6
    assert by_name["tiny-classify"].limits.max_top_k == 3
    assert by_name["tiny-rerank"].limits.max_documents == 1000
    assert by_name["tiny-answer"].limits.max_passages == 100
    assert by_name["tiny-translate"].mask_token is None
    assert by_name["tiny-zero-shot"].tasks == ["zero-shot", "embed"], "one without a section"
    assert by_name["tiny-translate"].tasks == ["translate", "score"]
    taken = {(model.id, one.task): one.fields for model in listing.data for one in model.inputs}
    assert taken["tiny-zero-shot", "zero-shot"] == ["images"]
    assert taken["tiny-zero-shot", "embed"] == ["texts", "images"]
    assert taken["tiny-classify", "classify"] == ["texts", "pairs"]
    assert taken["tiny-rerank", "rerank"] == ["query"]
    assert taken["tiny-answer", "answer"] == ["question"]
    assert taken["tiny-translate", "translate"] == ["texts"]
