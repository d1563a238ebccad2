"""`/hf/…`, with Hugging Face's own client."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import (
    HfHubHTTPError,
    OverloadedError,
    TextGenerationError,
    UnknownError,
    ValidationError,
)
from huggingface_hub.utils import _http

from inference.errors import DeadlineExceeded, Overloaded, Unavailable
from inference.generation import Finished, Hypothesis
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.tiny_models import (
    WordTokenizer,
    box_writer,
    detector,
    image_file,
    picture_reader,
    text_classifier,
)
from tests.inference.tiny_models import served as made
from tests.serving.gateway.conftest import (
    GREEDY,
    Gateway,
    MakeGateway,
    all_models,
    loaded,
    text_models,
)
from tests.serving.gateway.http.test_page import served as served_over_loopback
from tests.tasks.models import CHAT as SECTION

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""What the asynchronous client of Hugging Face does when it sends bytes."""

END = 1
"""The end token of the tiny generator."""
Connect = Callable[..., AsyncInferenceClient]


def generator() -> LoadedModel:
    greedy = GREEDY.model_copy(update={"eos_token_ids": (END,)})
    return loaded("generate", generation=greedy)


def entailer() -> LoadedModel:
    labels = ("contradiction", "neutral", "entailment")
    return made(text_classifier(labels).model_copy(update={"name": "tiny-nli"}), WordTokenizer())


def reader() -> LoadedModel:
    """Whose labels are answers to questions about pictures."""
    return made(picture_reader().model_copy(update={"name": "tiny-vqa"}), WordTokenizer())


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([*all_models()[:3], generator(), *text_models(), entailer(), reader()])


@pytest.fixture
def connect(gateway: Gateway) -> Iterator[Connect]:
    """Clients of paths below `/hf/`."""

    def session() -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(gateway.app, raise_app_exceptions=False)
        hooks = {"response": [_http.async_hf_response_event_hook]}
        return httpx2.AsyncClient(transport=transport, event_hooks=hooks)

    huggingface_hub.set_async_client_factory(session)
    yield lambda path, key=None: AsyncInferenceClient(f"http://gateway/hf/{path}", token=key)
    huggingface_hub.set_async_client_factory(_http.default_async_client_factory)


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        ({"type": "regex", "value": "a+"}, ("a+", None)),
        ({"type": "json", "value": {"type": "object"}}, (None, '{"type": "object"}')),
        ({"type": "json_schema", "value": {"name": "x", "schema": {}}}, (None, "{}")),
    ],
)
async def test_grammars_reach_the_engine(
    gateway: Gateway, connect: Connect, grammar: dict[str, object], sent: tuple[str | None, ...]
) -> None:
    client = connect("generate/tiny-generate")
    await client.text_generation("a b", grammar=grammar)
    options = gateway.inference.calls[-1].options
    assert (options.regex, options.json_schema) == sent


async def test_translation(gateway: Gateway, connect: Connect) -> None:
    client = connect("translate/tiny-translate")
    told = await client.translation("a b", src_lang="es", tgt_lang="en")
    assert told.translation_text == "a b"
    await client.translation("a", generate_parameters={"num_beams": 3})
    assert gateway.inference.calls[-1].options.num_beams == 3
    with pytest.raises(HfHubHTTPError, match="translates es-en only"):
        await client.translation("a", src_lang="es", tgt_lang="de")


@pytest.mark.parametrize("path", ["answer/tiny-answer", "tiny-answer"])
async def test_question_answering(gateway: Gateway, connect: Connect, path: str) -> None:
    client, context = connect(path), " a b c d e f g h"
    body = {"question": "q", "passages": context, "n": 3, "null_threshold": 0.0}
    (item,) = (await gateway.http.post("/v1/answer", json=body)).json()["data"]
    wanted = [(one["text"], one["start"], one["end"], one["score"]) for one in item["answers"]]
    told = await client.question_answering("q", context, top_k=3, handle_impossible_answer=True)
    assert [(one.answer, one.start, one.end, one.score) for one in told] == wanted
    assert "" in [one.answer for one in told]
    best = await client.question_answering("q", context)
    assert (best.answer, best.score) == next((text, s) for text, _, _, s in wanted if text)
    parts = await client.question_answering(
        "q", context, doc_stride=1, max_seq_len=7, max_answer_len=1, align_to_words=False
    )
    assert len(parts.answer) == 1
    assert sum(call.rows for call in gateway.inference.calls[-1:]) == 3


async def test_questions_that_are_not_answered_are_refused_by_name(
    gateway: Gateway, connect: Connect
) -> None:
    client = connect("answer/tiny-answer")
    for given, message in (
        ({"question": " ", "context": "a"}, "inputs.question is empty"),
        ({"question": "q", "context": ""}, "inputs.context is empty"),
        ({"question": "q", "context": "a", "top_k": 21}, "parameters.top_k"),
        ({"question": "q", "context": "a", "max_question_len": 9}, "max_question_len: .*not serv"),
        ({"question": "q", "context": "a", "max_seq_len": 99}, "max_seq_len is 99, .* at most 12"),
        ({"question": "q " * 9, "context": "a " * 9}, "inputs.question has 9 tokens"),
    ):
        with pytest.raises(HfHubHTTPError, match=message):
            await client.question_answering(**given)
    for path in ("answer/tiny-answer", "tiny-answer"):
        with pytest.raises(HfHubHTTPError, match="table_question_answering is not served"):
            await connect(path).table_question_answering({"a": ["b"]}, "q")


@pytest.mark.parametrize("path", ["caption/tiny-caption", "tiny-caption"])
async def test_image_to_text(connect: Connect, path: str) -> None:
    told = await connect(path).image_to_text(image_file("red"))
    assert told.generated_text == "picture"


@pytest.mark.parametrize("method", ["visual_question_answering", "document_question_answering"])
async def test_questions_about_images(
    method: str, connect: Connect, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = getattr(connect("caption/tiny-caption"), method)
    with pytest.raises(HfHubHTTPError, match="describes images and answers no questions"):
        await ask(image_file("red"), "picture")
    with pytest.raises(HfHubHTTPError, match="tiny-zero-shot") as raised:
        await getattr(connect("caption/tiny-zero-shot"), method)(image_file("red"), "picture")
    assert raised.value.response.status_code == 422
    monkeypatch.setattr(type(TASKS["caption"]), "answers", lambda task, model: True)
    (told,) = await ask(image_file("red"), "picture")
    assert told.answer.endswith("picture")
    prompt = gateway.inference.calls[-1].inputs["prompt_ids"]
    assert prompt.size == 1


async def test_captions_take_parameters_beside_base64(gateway: Gateway) -> None:
    body = {"inputs": base64_of("red"), "parameters": {"max_new_tokens": 4}}
    response = await gateway.http.post("/hf/caption/tiny-caption", json=body)
    assert response.json() == [{"generated_text": "picture", "finish_reason": "stop"}]
    assert gateway.inference.calls[-1].options.max_new_tokens == 4


@pytest.mark.parametrize(
    ("given", "is_sampled"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 3, "typical_p": 0.8}, True),
        ({"do_sample": True}, True),
        ({"do_sample": False, "temperature": 0.5}, False),
        ({"num_beams": 2}, False),
    ],
)
async def test_captions_are_sampled_by_generation_parameters(
    gateway: Gateway, given: dict[str, object], *, is_sampled: bool
) -> None:
    body = {"inputs": base64_of("red"), "parameters": {"generation_parameters": given}}
    await gateway.post("/hf/caption/tiny-caption", json=body)
    options = gateway.inference.calls[-1].options
    assert options.do_sample == is_sampled
    names = ("temperature", "top_p", "top_k", "typical_p") if is_sampled else ("num_beams",)
    assert [getattr(options, name) for name in names if name in given] == [
        given[name] for name in names if name in given
    ]


def base64_of(colour: str) -> str:

    return base64.b64encode(image_file(colour)).decode()


async def test_zero_shot_image_classification(connect: Connect) -> None:
    client = connect("zero-shot/tiny-zero-shot")
    told = await client.zero_shot_image_classification(
        image_file("red"), ["a b", "b"], hypothesis_template="a {}"
    )
    assert {one.label for one in told} == {"a b", "b"}
    assert told[0].score >= told[1].score
    assert sum(one.score for one in told) == pytest.approx(1)
    with pytest.raises(HfHubHTTPError, match=r"hypothesis_template has no \{\}"):
        await client.zero_shot_image_classification(
            image_file("red"), ["a", "b"], hypothesis_template="a"
        )


WRITTEN = "cat <loc_0> <loc_500> <loc_999> <loc_999> dog <loc_250> <loc_0> <loc_750> <loc_600>"
"""Two boxes in an image of 6 x 5 pixels."""


@pytest.fixture
def writer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """A served model that answers `WRITTEN`: of the first box it is less sure."""
    model = box_writer()
    ids = tuple(model.tokenizer.encode(WRITTEN, add_special_tokens=False))
    best = Hypothesis(ids, 0.0, "stop", (-0.4,) * 5 + (-0.1,) * 5)
    monkeypatch.setattr(gateway.inference, "_generated", lambda call: Finished((best,), 5))
    gateway.service.catalog.put(model)
    return model


@pytest.mark.parametrize("path", ["detect/tiny-detect", "tiny-detect"])
@pytest.mark.parametrize(
    ("parameters", "labels"),
    [({}, ["dog", "cat"]), ({"threshold": 0}, ["dog", "cat"]), ({"threshold": 0.8}, ["dog"])],
    ids=["bytes", "base64", "threshold"],
)
async def test_object_detection(
    connect: Connect, writer: LoadedModel, path: str, parameters: dict[str, Any], labels: list[str]
) -> None:
    found = await connect(path).object_detection(image_file("red"), **parameters)
    assert [one.label for one in found] == labels
    assert found[0].score == pytest.approx(np.exp(-0.1))
    box = found[0].box
    assert (box.xmin, box.ymin, box.xmax, box.ymax) == (1, 0, 4, 3)


async def test_objects_are_found_by_labels_over_http(gateway: Gateway, writer: LoadedModel) -> None:
    body = {"inputs": base64_of("red"), "parameters": {"candidate_labels": ["a cat", "a dog"]}}
    response = await gateway.http.post("/hf/detect/tiny-detect", json=body)
    assert [one["label"] for one in response.json()] == ["dog", "cat"]
    asked = gateway.inference.calls[-1].inputs["source_ids"].tolist()
    words = writer.tokenizer.encode("find a cat. a dog here")
    assert asked[-len(words) :] == words


async def test_object_detection_is_refused_by_a_model_that_needs_labels(
    gateway: Gateway, connect: Connect
) -> None:
    gateway.service.catalog.put(made(detector(), WordTokenizer()))
    client = connect("detect/tiny-detect")
    for parameters in ({}, {"threshold": 0.5}):
        with pytest.raises(HfHubHTTPError) as raised:
            await client.object_detection(image_file("red"), **parameters)
        response = raised.value.response
        assert (response.status_code, response.json()["error_type"]) == (422, "validation")
        told = response.json()["error"]
        assert told.startswith("tiny-detect finds things by labels")
        assert "parameters.candidate_labels" in told
        assert "/v1/detect" in told
    with pytest.raises(HfHubHTTPError, match=r"parameters\.threshold"):
        await client.object_detection(image_file("red"), threshold=1.5)
    with pytest.raises(HfHubHTTPError, match="tiny-caption"):
        await connect("detect/tiny-caption").object_detection(image_file("red"))


async def test_fill_mask(connect: Connect) -> None:
    client = connect("fill-mask/tiny-fill-mask")
    told = await client.fill_mask("a picture b", top_k=2)
    assert [one.score for one in told] == [0.5, 0.25]
    assert told[1].token == 4
    assert told[1].sequence.split() == ["a", told[1].token_str, "b"]
    (one,) = await client.fill_mask("a picture b", targets=["b"])
    assert one.token_str == "b"
    several = await client.fill_mask("picture a picture", top_k=2)
    assert [len(mask) for mask in several] == [2, 2]
    with pytest.raises(HfHubHTTPError, match="inputs has no mask"):
        await client.fill_mask("a")


async def test_feature_extraction(connect: Connect) -> None:
    client = connect("embed/tiny-zero-shot")
    (vector,) = await client.feature_extraction("a b")
    assert np.linalg.norm(vector) == pytest.approx(1)
    several = await client.feature_extraction(["a b", "c"], normalize=True, truncate=False)
    assert several.shape == (2, 3)
    np.testing.assert_array_equal(several[0], vector)
    short = await client.feature_extraction("a b", dimensions=2)
    np.testing.assert_allclose(short[0], vector[:2] / np.linalg.norm(vector[:2]), rtol=1e-6)
    for refused, name in (
        ({"prompt_name": "query"}, "no prompt of that name"),
        ({"normalize": False}, "normalize"),
        ({"truncation_direction": "up"}, "truncation_direction"),
        ({"dimensions": 4}, "dimensions is 4"),
    ):
        with pytest.raises(HfHubHTTPError, match=name):
            await client.feature_extraction("a b", **refused)


async def test_sentence_similarity(connect: Connect) -> None:
    client = connect("embed/tiny-zero-shot")
    told = await client.sentence_similarity("a b", other_sentences=["a b", "c d", "e"])
    vectors = await client.feature_extraction(["a b", "c d", "e"])
    np.testing.assert_allclose(told, vectors @ vectors[0], rtol=1e-5)
    assert told[0] == pytest.approx(1)
    with pytest.raises(HfHubHTTPError, match=r"inputs\.comparison\.sentences"):
        await client.sentence_similarity("a", other_sentences=[])


async def test_text_classification(connect: Connect) -> None:
    client = connect("classify/tiny-classify")
    told = await client.text_classification("a b", top_k=2)
    assert len(told) == 2
    assert told[0].score >= told[1].score
    (raw, *_) = await client.text_classification("a b", function_to_apply="none")
    assert raw.score > 1
    with pytest.raises(HfHubHTTPError, match="inputs has 41 tokens"):
        await client.text_classification("a " * 40)


@pytest.mark.parametrize("parameters", [{}, {"top_k": 1}], ids=["bytes", "base64"])
async def test_image_classification(connect: Connect, parameters: dict[str, Any]) -> None:
    client = connect("classify/tiny-pictures")
    told = await client.image_classification(image_file("blue"), **parameters)
    assert (told[0].label, told[0].score) == ("blue", 1.0)
    assert len(told) == parameters.get("top_k", 3)
    with pytest.raises(HfHubHTTPError, match="415"):
        await client.image_classification(b"no image", **parameters)


async def test_questions_whose_answers_are_labels(connect: Connect, gateway: Gateway) -> None:
    client = connect("classify/tiny-vqa")
    told = await client.visual_question_answering(image_file("blue"), "how many", top_k=2)
    # The tiny logit of blue is the number of tokens of the question and an end token.
    assert [(one.answer, one.score) for one in told] == [("blue", 3.0), ("red", 0.0)]
    asked = {"image": base64_of("red"), "question": "what"}
    response = await gateway.http.post("/hf/classify/tiny-vqa", json={"inputs": asked})
    assert response.json()[0] == {"answer": "red", "score": 1.0}
    for refused, named in (
        ({"inputs": base64_of("red")}, "only images with texts"),
        ({"inputs": base64_of("red"), "question": " "}, "question"),
        (
            {"inputs": asked, "parameters": {"candidate_labels": ["a", "b"]}},
            "candidate_labels are of a text",
        ),
    ):
        response = await gateway.http.post("/hf/classify/tiny-vqa", json=refused)
        assert (response.status_code, response.json()["error_type"]) == (422, "validation")
        assert named in response.json()["error"]
    with pytest.raises(HfHubHTTPError, match="cannot classify images with texts, only texts"):
        await connect("classify/tiny-classify").visual_question_answering(image_file("red"), "a")


async def test_image_needs_no_content_type(gateway: Gateway) -> None:
    for kind in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        path = "/hf/classify/tiny-pictures"
        response = await gateway.http.post(path, content=image_file("red"), headers=kind)
        assert response.json()[0] == {"label": "red", "score": 1.0}
        body = json.dumps({"inputs": base64_of("red")})
        response = await gateway.http.post(path, content=body, headers=kind)
        assert (response.status_code, response.json()["error_type"]) == (415, "validation")
        assert "content-type: application/json" in response.json()["error"]
    response = await gateway.http.post(path, files={"images": image_file("red")})
    assert (response.status_code, response.json()["error_type"]) == (415, "validation")


async def test_zero_shot_classification(connect: Connect) -> None:
    client = connect("classify/tiny-nli")
    told = await client.zero_shot_classification("a", ["b", "c d e"])
    # The tiny logit of its last label is the number of tokens of the hypothesis and an end token.
    assert [one.label for one in told] == ["c d e", "b"]
    assert told[0].score == pytest.approx(1 / (1 + np.exp(-2)))
    several = await client.zero_shot_classification("a", ["b", "c d e"], multi_label=True)
    assert {one.label for one in several} == {"b", "c d e"}
    assert sum(one.score for one in several) != pytest.approx(1)


async def test_zero_shot_classification_needs_a_model_of_entailment(connect: Connect) -> None:
    client = connect("classify/tiny-classify")
    with pytest.raises(HfHubHTTPError, match="labels of tiny-classify are x, y, z"):
        await client.zero_shot_classification("a", ["b", "c"])
    client = connect("classify/tiny-nli")
    with pytest.raises(HfHubHTTPError, match=r"hypothesis_template has no \{\}"):
        await client.zero_shot_classification("a", ["b"], hypothesis_template="is")
    with pytest.raises(HfHubHTTPError, match=r"candidate_labels\.1 is empty"):
        await client.zero_shot_classification("a", ["b", " "])
    with pytest.raises(HfHubHTTPError, match="candidate_labels holds 33 items"):
        await client.zero_shot_classification("a", ["b"] * 33)


async def test_token_classification(connect: Connect) -> None:
    client = connect("tag/tiny-tag")
    text = "a b c d e f"
    single = await client.token_classification(text)
    assert all(one.entity and one.entity_group is None for one in single)
    assert all(text[one.start : one.end] == one.word for one in single)
    joined = await client.token_classification(text, aggregation_strategy="simple")
    assert all(one.entity_group in ("a", "b") and one.entity is None for one in joined)
    every = await client.token_classification(text, ignore_labels=[])
    assert {one.entity for one in every} > {one.entity for one in single}
    fewer = await client.token_classification(text, ignore_labels=["O", "B-a"])
    assert {one.entity for one in single} - {one.entity for one in fewer} == {"B-a"}
    with pytest.raises(HfHubHTTPError, match=r"parameters\.stride"):
        await client.token_classification(text, stride=-1)


async def test_text_generation(gateway: Gateway, connect: Connect) -> None:
    client = connect("generate/tiny-generate")
    assert await client.text_generation("a b") == "a b"
    assert await client.text_generation("a b", return_full_text=True) == "a ba b"
    await client.text_generation(
        "a",
        max_new_tokens=4,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        seed=3,
        stop=["x"],
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        typical_p=0.8,
        best_of=2,
        do_sample=True,
        watermark=False,
    )
    options = gateway.inference.calls[-1].options
    assert (options.max_new_tokens, options.frequency_penalty) == (4, 0.5)
    assert (options.repetition_penalty, options.seed, options.top_k) == (1.2, 3, 7)
    assert (options.temperature, options.top_p, options.typical_p) == (0.5, 0.9, 0.8)
    assert (options.best_of, options.do_sample) == (2, True)


@pytest.mark.parametrize(
    ("given", "is_sampled"),
    [
        ({}, False),
        ({"seed": 3}, False),
        ({"best_of": 1}, False),
        ({"do_sample": True}, True),
        ({"do_sample": True, "seed": 3}, True),
        ({"top_k": 7}, True),
        ({"do_sample": False, "top_k": 7, "temperature": 0.8, "seed": 3}, False),
    ],
)
async def test_tokens_are_sampled_as_in_tgi(
    gateway: Gateway, connect: Connect, given: dict[str, Any], is_sampled: bool
) -> None:
    await connect("generate/tiny-generate").text_generation("a", **given)
    options = gateway.inference.calls[-1].options
    assert options.do_sample == is_sampled
    assert options.seed == (given.get("seed") if is_sampled else None)


async def test_generated_text_with_details(gateway: Gateway, connect: Connect) -> None:
    client = connect("generate/tiny-generate")
    told = await client.text_generation("a b", details=True, top_n_tokens=2, seed=3)
    assert told.generated_text == "a b"
    details = told.details
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("eos_token", 3, 3)
    assert [token.text for token in details.tokens] == ["a", "b", "</s>"]
    assert [gateway.word(token.id) for token in details.tokens] == ["a", "b", "</s>"]
    assert [token.special for token in details.tokens] == [False, False, True]
    assert [token["logprob"] for token in details.top_tokens[0]] == [-0.25, -1.5]
    assert details.best_of_sequences is None
    stopped = await client.text_generation("a b", details=True, stop=["b"])
    assert (stopped.generated_text, stopped.details.finish_reason) == ("a ", "stop_sequence")
    sampled = await client.text_generation("a b", details=True, best_of=3)
    assert [one.generated_text for one in sampled.details.best_of_sequences] == ["a b", "a b"]


async def test_stream_with_details(gateway: Gateway, connect: Connect) -> None:
    client = connect("tiny-generate")
    stream = await client.text_generation("a b a", stream=True, details=True, seed=3)
    events = [event async for event in stream]
    assert [event.index for event in events] == [1, 2, 3, 4]
    assert [gateway.word(event.token.id) for event in events] == ["a", "b", "a", "</s>"]
    assert "".join(event.token.text for event in events) == "a b a"
    assert [event.token.special for event in events] == [False, False, False, True]
    assert [event.details for event in events[:-1]] == [None] * 3
    last = events[-1]
    assert last.generated_text == "a b a"
    assert last.details.finish_reason == "eos_token"
    assert (last.details.generated_tokens, last.details.input_length) == (4, 4)
    assert last.details.seed == 3


async def test_stream_that_fails_raises_in_the_client(gateway: Gateway, connect: Connect) -> None:
    gateway.inference.breaks[2] = Overloaded("full")
    stream = await connect("generate/tiny-generate").text_generation("a b", stream=True)
    with pytest.raises(OverloadedError, match="full"):
        _ = [text async for text in stream]
    gateway.inference.breaks[0] = Overloaded("full")
    with pytest.raises(OverloadedError, match="full"):
        await connect("generate/tiny-generate").text_generation("a b", stream=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"truncate": 3}, "parameters.truncate: this parameter is not served"),
        ({"watermark": True}, "parameters.watermark"),
        ({"watermark": 0}, "parameters.watermark"),
        ({"grammar": {"type": "lark", "value": "a"}}, "parameters.grammar"),
        ({"grammar": {"type": "regex"}}, "parameters.grammar"),
        ({"decoder_input_details": True, "details": True}, "parameters.decoder_input_details"),
        ({"temperature": -1}, "parameters.temperature"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens"),
    ],
)
async def test_parameters_that_are_not_served_are_named(
    connect: Connect, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        await connect("generate/tiny-generate").text_generation("a", **given)


async def test_unknown_fields_and_other_methods_are_refused(
    gateway: Gateway, connect: Connect
) -> None:
    with pytest.raises(ValidationError, match="inputs has 41 tokens"):
        await connect("generate/tiny-generate").text_generation("a " * 40)
    for path, body in (
        ("translate/tiny-translate", {"inputs": "a", "options": {"use_cache": True}}),
        ("translate/tiny-translate", {"inputs": "a", "parameters": {"truncation": "only_first"}}),
        ("classify/tiny-classify", {"inputs": "a", "parameters": {"multi_label": True}}),
        ("embed/tiny-zero-shot", {"inputs": [1]}),
        ("classify/tiny-translate", {"inputs": "a"}),
        ("tiny-rerank", {"inputs": "a"}),
    ):
        response = await gateway.post(f"/hf/{path}", json=body, status=422)
        assert set(response.json()) == {"error", "error_type"}
        assert response.json()["error_type"] == "validation"
    assert "rerank first" in response.json()["error"]


async def test_an_image_is_not_for_a_model_of_texts(gateway: Gateway) -> None:
    path, kind = "/hf/tiny-generate", {"content-type": "image/png"}
    response = await gateway.http.post(path, content=image_file("red"), headers=kind)
    assert (response.status_code, response.json()["error_type"]) == (415, "validation")


async def test_a_key_is_taken_from_the_token(make_gateway: MakeGateway, connect: Connect) -> None:
    gateway = make_gateway([generator()], api_key="sesame")
    for path in ("/hf/generate/tiny-generate", "/hf/tiny-generate", "/hf/absent"):
        response = await gateway.post(path, json={"inputs": "a"}, status=401)
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error_type"] == "unauthorized"
        headers = {"authorization": "Bearer sesame"}
        known = await gateway.http.post(path, json={"inputs": "a"}, headers=headers)
        assert known.status_code == (404 if "absent" in path else 200)


async def test_failures_have_their_statuses(gateway: Gateway, connect: Connect) -> None:
    with pytest.raises(HfHubHTTPError, match="no such model") as absent:
        await connect("classify/absent").text_classification("a")
    assert absent.value.response.status_code == 404
    with pytest.raises(UnknownError, match="no such model"):
        await connect("absent").text_generation("a")
    client = connect("classify/tiny-classify")
    failures = [
        (Overloaded("full", retry_after_s=2), 429, "overloaded"),
        (Unavailable("down", retry_after_s=2), 503, "unavailable"),
        (DeadlineExceeded("late"), 504, "generation"),
        (ValueError("secret"), 500, "generation"),
    ]
    for failure, status, kind in failures:
        gateway.inference.failures["tiny-classify"] = failure
        with pytest.raises(HfHubHTTPError) as raised:
            await client.text_classification("a")
        response = raised.value.response
        assert (response.status_code, response.json()["error_type"]) == (status, kind)
        assert "secret" not in str(raised.value)
        assert response.headers.get("retry-after") == ("2" if status in (429, 503) else None)
    gateway.inference.failures["tiny-generate"] = DeadlineExceeded("late")
    with pytest.raises(TextGenerationError, match="late"):
        await connect("tiny-generate").text_generation("a")


async def test_bodies_are_bounded(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(text_models(), payload_limit=1024)
    response = await gateway.http.post("/hf/classify/tiny-pictures", content=b"a" * 1025)
    assert (response.status_code, response.json()["error_type"]) == (413, "validation")


async def test_metrics_have_the_route_and_not_the_model(gateway: Gateway) -> None:
    for path in ("generate/tiny-generate", "tiny-generate", "generate/absent", "absent"):
        await gateway.http.post(f"/hf/{path}", json={"inputs": "a"})
    await gateway.http.post("/hf/generate/{model}", json={"inputs": "a"})
    metrics = (await gateway.http.get("/metrics")).text
    assert 'triptych_request_count_total{route="/hf/generate/{model}"} 3.0' in metrics
    assert 'triptych_request_count_total{route="/hf/{model}"} 2.0' in metrics
    assert "absent" not in metrics


async def test_another_method_of_http_is_refused_in_the_same_form(gateway: Gateway) -> None:
    for path in ("/hf/generate/tiny-generate", "/hf/tiny-generate"):
        response = await gateway.http.get(path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error_type"] == "method_not_allowed"


async def test_chat_completion_is_that_of_openai(gateway: Gateway, connect: Connect) -> None:
    chat = loaded("chat", SECTION, generation=GREEDY)
    gateway.service.catalog.put(chat)
    client = AsyncInferenceClient("http://gateway/v1")
    told = await client.chat_completion([{"role": "user", "content": "a b"}], model="tiny-chat")
    assert told.choices[0].message.content == "user : a b assistant :"


def test_the_client_without_asyncio() -> None:
    with served_over_loopback() as address:
        pictures = InferenceClient(f"{address}/hf/classify/tiny-pictures")
        assert pictures.image_classification(image_file("red"))[0].label == "red"
        texts = InferenceClient(f"{address}/hf/generate/tiny-generate")
        assert "".join(texts.text_generation("a b a", stream=True)) == "a b a"
        huggingface_hub.close_session()
