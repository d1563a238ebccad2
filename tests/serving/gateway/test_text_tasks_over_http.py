"""The tasks over texts and images that return labels, tokens and ranks, over HTTP and gRPC."""

from __future__ import annotations

import pytest

from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, error_of, text_models
from triptych import triptych_pb2 as pb
from triptych.client.conversion import from_proto, to_proto
from triptych.messages import ModelList
from triptych.tasks.classify import ClassifyRequest, ClassifyResponse, TextPair
from triptych.tasks.fill_mask import FilledMasks, FillMaskResponse, MaskToken
from triptych.tasks.rerank import RerankResponse
from triptych.tasks.tag import TagResponse


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


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"pairs": [["a"]]}, "pairs.0: a pair is a list of two texts, this list has 1"),
        ({"pairs": [["a", "b", "c"]]}, "pairs.0: a pair is a list of two texts"),
        ({"pairs": [["a", 1]]}, "pairs.0.second: Input should be a valid string"),
        ({"pairs": []}, "pairs"),
        ({"texts": "a", "top_k": 0}, "top_k"),
        ({"texts": "a", "stride": -1}, "stride"),
        ({}, "give one of texts, pairs and images"),
    ],
)
async def test_bad_request_is_explained(gateway: Gateway, body: dict, field: str) -> None:
    response = await gateway.http.post("/v1/classify", json=body)
    assert response.status_code == 422
    error = error_of(response)
    assert field in (error.get("field") or "") + error["message"]


async def test_masks_are_lists_of_lists(gateway: Gateway) -> None:
    body = {"texts": ["picture a picture", "a"], "top_k": 2}
    response = await gateway.http.post("/v1/fill-mask", json=body)
    answer = FillMaskResponse.model_validate_json(response.content)
    assert [len(mask) for mask in answer.data[0].masks] == [2, 2]
    assert "no mask" in answer.data[1].error.message


async def test_text_without_entities_has_an_empty_list(gateway: Gateway) -> None:
    # "ab" is token 4 and "x" is token 5: the label of a token is its number modulo 5.
    response = await gateway.http.post("/v1/tag", json={"texts": "ab x"})
    answer = TagResponse.model_validate_json(response.content)
    assert [token.text for token in answer.data[0].tokens] == ["ab"]
    response = await gateway.http.post("/v1/tag", json={"texts": "x"})
    assert response.json()["data"] == [{"index": 0, "tokens": []}]


async def test_documents_are_ranked(gateway: Gateway) -> None:
    body = {"query": "q", "documents": ["a", "a a", " "], "top_n": 1}
    response = await gateway.http.post("/v1/rerank", json=body)
    (item,) = RerankResponse.model_validate_json(response.content).data
    assert [(one.index, one.error is None) for one in item.results] == [(1, True), (2, False)]


async def test_models_list_what_the_tasks_need(gateway: Gateway) -> None:
    listing = ModelList.model_validate_json((await gateway.http.get("/v1/models")).content)
    by_name = {model.id: model for model in listing.data}
    assert by_name["tiny-fill-mask"].mask_token == "picture"
    assert by_name["tiny-fill-mask"].limits.max_top_k == 6
    assert by_name["tiny-classify"].limits.max_top_k == 3
    assert by_name["tiny-rerank"].limits.max_documents == 1000
    assert by_name["tiny-translate"].mask_token is None
    taken = {(model.id, one.task): one.fields for model in listing.data for one in model.inputs}
    assert taken["tiny-classify", "classify"] == ["texts", "pairs"]
    assert taken["tiny-rerank", "rerank"] == ["query"]
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
