"""Tasks over HTTP, as users send them."""

from __future__ import annotations

import base64

import httpx
import pytest

from tests.inference.tiny_models import image_file, segmenter, served
from tests.serving.gateway.conftest import (
    Gateway,
    MakeGateway,
    all_models,
    error_of,
    loaded,
    text_models,
)
from triptych import triptych_pb2 as pb
from triptych.client.conversion import from_proto, to_proto
from triptych.messages import ModelList, TaskInputs
from triptych.tasks.caption import CaptionResponse
from triptych.tasks.classify import ClassifyRequest, ClassifyResponse, TextPair
from triptych.tasks.fill_mask import FilledMasks, MaskToken
from triptych.tasks.segment import SegmentResponse

RED = base64.b64encode(image_file("red")).decode()


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
    first = await gateway.http.post("/v1/segment", json=body)
    assert first.status_code == 200
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
    gateway = make_gateway(max_client_batch_size=7, max_input_tokens=10, max_image_pixels=99)
    response = await gateway.http.get("/v1/models")
    listing = ModelList.model_validate_json(response.content)
    by_name = {model.id: model for model in listing.data}
    translator = by_name["tiny-translate"]
    assert translator.languages == [["es", "en"]]
    assert translator.limits.max_input_tokens == 10  # the gateway's is tighter than the model's 12
    assert translator.limits.max_client_batch_size == 7
    assert translator.limits.max_image_pixels is None
    assert by_name["tiny-zero-shot"].limits.max_labels == 1000
    assert by_name["tiny-caption"].limits.max_image_pixels == 99


async def test_timing_headers_add_up(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/translate", json={"texts": "hola"})
    for name in ("x-tokenization-time", "x-queue-time", "x-inference-time"):
        assert float(response.headers[name]) >= 0


@pytest.mark.parametrize(("sent", "kept"), [("abc-1", True), ("a b", False), ("x" * 129, False)])
async def test_request_id_is_echoed_or_made(gateway: Gateway, sent: str, kept: bool) -> None:
    response = await gateway.http.get("/health", headers={"x-request-id": sent})
    assert (response.headers["x-request-id"] == sent) is kept
    assert response.headers["x-request-id"]


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

    async def test_several_without_default_names_them(self, make_gateway: MakeGateway) -> None:
        response = await self.ask(make_gateway(self.models()), source="es")
        assert response.status_code == 422
        assert "es-en, es-en-big" in response.json()["error"]["message"]

    async def test_unknown_pair_names_the_known(self, make_gateway: MakeGateway) -> None:
        response = await self.ask(make_gateway(self.models()), source="fr")
        assert response.status_code == 422
        assert "en-de, es-en" in response.json()["error"]["message"]
        assert response.json()["error"]["field"] == "source"

    async def test_named_model_of_another_pair_is_refused(self, make_gateway: MakeGateway) -> None:
        response = await self.ask(make_gateway(self.models()), model="en-de", target="en")
        assert response.status_code == 422
        assert response.json()["error"]["message"] == "en-de translates en-de only"

    async def test_model_of_another_task_is_refused(self, gateway: Gateway) -> None:
        response = await self.ask(gateway, model="tiny-caption")
        assert response.status_code == 422
        assert response.json()["error"]["field"] == "model"


class TestEmbed:
    async def test_models_list_it_without_a_section(self, gateway: Gateway) -> None:
        listed = ModelList.model_validate_json((await gateway.http.get("/v1/models")).content)
        tasks = {model.id: model.tasks for model in listed.data}
        assert tasks["tiny-zero-shot"] == ["zero-shot", "embed"]
        assert tasks["tiny-translate"] == ["translate", "score"]
        assert {model.id: model.inputs for model in listed.data}["tiny-zero-shot"] == [
            TaskInputs(task="zero-shot", fields=["images"]),
            TaskInputs(task="embed", fields=["texts", "images"]),
        ]


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


async def test_models_list_what_the_tasks_need(gateway: Gateway) -> None:
    listing = ModelList.model_validate_json((await gateway.http.get("/v1/models")).content)
    by_name = {model.id: model for model in listing.data}
    assert by_name["tiny-fill-mask"].mask_token == "picture"
    assert by_name["tiny-fill-mask"].limits.max_top_k == 6
    assert by_name["tiny-classify"].limits.max_top_k == 3
    assert by_name["tiny-rerank"].limits.max_documents == 1000
    assert by_name["tiny-answer"].limits.max_passages == 100
    assert by_name["tiny-translate"].mask_token is None
    taken = {(model.id, one.task): one.fields for model in listing.data for one in model.inputs}
    assert taken["tiny-classify", "classify"] == ["texts", "pairs"]
    assert taken["tiny-rerank", "rerank"] == ["query"]
    assert taken["tiny-answer", "answer"] == ["question"]
    assert taken["tiny-translate", "translate"] == ["texts"]


def test_lists_of_lists_of_messages_survive_protobuf() -> None:
    tokens = [MaskToken(token=str(i), token_id=i, score=0.5, text="x") for i in range(3)]
    item = FilledMasks(index=1, masks=[tokens[:2], [], tokens[2:]])
    packed = to_proto(item)
    assert [len(row.values) for row in packed.masks] == [2, 0, 1]
    assert from_proto(pb.FilledMasks.FromString(packed.SerializeToString()), FilledMasks) == item


def test_pairs_survive_protobuf() -> None:
    request = ClassifyRequest(pairs=[TextPair(first="a", second="b"), ["c", "d"]])
    packed = to_proto(request)
    assert [(pair.first, pair.second) for pair in packed.pairs] == [("a", "b"), ("c", "d")]
    assert from_proto(packed, ClassifyRequest) == request
