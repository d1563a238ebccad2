"""Stored glossaries over HTTP and gRPC: names, keys, limits, and translations that use them."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.serving.gateway.admission.test_keys import entry
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, error_of, loaded
from tests.serving.gateway.grpc.test_grpc_front import Front
from triptych import triptych_pb2 as pb
from triptych.glossaries.messages import MAX_STORED_TERMS

TERMS = {"uno": "one", "dos": "two"}
PATH = "/v1/glossaries/kitchen"


@pytest.fixture
def storing(make_gateway: MakeGateway, tmp_path: Path) -> Gateway:
    return make_gateway(glossaries=tmp_path / "glossaries")


async def translated(gateway: Gateway, text: str = "uno tres", **fields: object) -> str:
    body = {"texts": text, "glossary_name": "kitchen", **fields}
    response = await gateway.http.post("/v1/translate", json=body)
    assert response.status_code == 200, response.text
    return response.json()["data"][0]["text"]


def forced(gateway: Gateway) -> list[set[str]]:
    """The phrases that the last call forces."""
    (model,) = (one for one in gateway.service.catalog.models if "translate" in one.sections)
    phrases = gateway.inference.calls[-1].options.force_words_ids or ()
    return [{model.tokenizer.decode(ids) for ids in spellings} for spellings in phrases]


async def test_put_list_get_use_delete(storing: Gateway) -> None:
    put = await storing.http.put(PATH, json={"terms": TERMS, "source": "es", "target": "en"})
    assert put.status_code == 200
    info = put.json()
    assert info == {
        "name": "kitchen", "source": "es", "target": "en", "size": 2, "modified": info["modified"],
    }  # fmt: skip
    assert (await storing.http.get("/v1/glossaries")).json() == {"data": [info]}
    whole = (await storing.http.get(PATH)).json()
    assert whole == {"name": "kitchen", "source": "es", "target": "en", "terms": TERMS}
    assert (await storing.http.put(PATH, json=whole)).status_code == 200
    await translated(storing)
    assert forced(storing) == [{"one", "One"}]
    assert (await storing.http.delete(PATH)).json()["size"] == 2
    for response in (
        await storing.http.get(PATH),
        await storing.http.delete(PATH),
        await storing.http.post("/v1/translate", json={"texts": "a", "glossary_name": "kitchen"}),
    ):
        assert response.status_code == 404
        assert error_of(response)["type"] == "unknown_glossary"
    assert error_of(response)["field"] == "glossary_name"


async def test_a_second_gateway_on_the_folder_sees_it_and_a_restart_too(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    first, second = (make_gateway(glossaries=tmp_path) for _ in range(2))
    await first.http.put(PATH, json={"terms": {"uno": "one"}})
    await translated(second)
    assert forced(second) == [{"one", "One"}]
    await first.http.put(PATH, json={"terms": {"uno": "single"}})
    await translated(second)
    assert forced(second) == [{"single", "Single"}]


async def test_own_terms_count_before_stored_ones(storing: Gateway) -> None:
    await storing.http.put(PATH, json={"terms": TERMS | {"uno tres": "both"}})
    await translated(storing, "uno dos", glossary={"uno": "single"})
    assert forced(storing) == [{"single", "Single"}, {"two", "Two"}]
    await translated(storing, "uno tres", glossary={"uno": "single"})
    assert forced(storing) == [{"both", "Both"}], "the longest term counts"
    await translated(storing, "UNO dos", do_not_translate=["UNO"])
    assert forced(storing)[0] == {"UNO"}


async def test_languages_are_those_of_the_glossary(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    french = loaded("translate", {"languages": [("en", "fr")]}, name="french")
    gateway = make_gateway([*all_models(), french], glossaries=tmp_path)
    await gateway.http.put(PATH, json={"terms": TERMS, "source": "es", "target": "en"})
    await translated(gateway)
    assert gateway.inference.calls[-1].model.startswith("tiny-translate")
    await translated(gateway, source="ES".lower())
    body = {"texts": "uno", "glossary_name": "kitchen", "source": "en"}
    response = await gateway.http.post("/v1/translate", json=body)
    assert response.status_code == 422
    assert error_of(response)["field"] == "source"
    assert "source is es" in error_of(response)["message"]


async def test_streams_take_names(storing: Gateway) -> None:
    await storing.http.put(PATH, json={"terms": TERMS})
    body = {"texts": "uno", "glossary_name": "kitchen", "stream": True, "num_beams": 1}
    response = await storing.http.post("/v1/translate", json=body)
    assert response.status_code == 200
    assert response.text.endswith("data: [DONE]\n\n")
    body["glossary_name"] = "other"
    assert (await storing.http.post("/v1/translate", json=body)).status_code == 404


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "a%2Fb", "..%2Fx", ".hidden", "k%C3%BCche", "a%0A", "a%00", "a" * 65, "a b"],
)
async def test_names_are_plain(storing: Gateway, tmp_path: Path, name: str) -> None:
    for verb, body in (("PUT", {"terms": TERMS}), ("GET", None), ("DELETE", None)):
        response = await storing.http.request(verb, f"/v1/glossaries/{name}", json=body)
        assert response.status_code in (404, 405, 422), (verb, response.text)
        error_of(response)
    assert list(tmp_path.rglob("*")) == []
    body = {"texts": "uno", "glossary_name": "../kitchen"}
    assert (await storing.http.post("/v1/translate", json=body)).status_code == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "terms"),
        ({"terms": {}}, "terms"),
        ({"terms": []}, "terms"),
        ({"terms": {"a": 1}}, "terms"),
        ({"terms": {"a": ""}}, "terms"),
        ({"terms": {"a": " "}}, "terms"),
        ({"terms": {"": "a"}}, "terms"),
        ({"terms": {"a": "b", "a ": "c"}}, "terms"),
        ({"terms": {"secreto": "x" * 201}}, "terms"),
        ({"terms": {str(number): "x" for number in range(MAX_STORED_TERMS + 1)}}, "terms"),
        ({"terms": {f"{number:0>100}": "x" * 100 for number in range(6000)}}, "terms"),
        ({"terms": TERMS, "name": "other"}, "name"),
        ({"terms": TERMS, "sauce": "es"}, "sauce"),
        ({"terms": TERMS, "source": ""}, "source"),
    ],
)
async def test_bad_glossaries_are_refused_and_nothing_is_stored(
    storing: Gateway, tmp_path: Path, body: dict[str, object], field: str
) -> None:
    response = await storing.http.put(PATH, json=body)
    assert response.status_code == 422
    assert error_of(response)["field"] == field
    assert "secreto" not in response.text
    assert not list(tmp_path.rglob("*.json"))


async def test_bodies_that_are_no_json_or_too_large(storing: Gateway) -> None:
    kind = {"content-type": "application/json"}
    assert (await storing.http.put(PATH, content=b"{}")).status_code == 415
    for body in (b"", b"a,b", b"\xef\xbb\xbf{}"):
        assert (await storing.http.put(PATH, content=body, headers=kind)).status_code in (400, 422)
    large = b'{"terms": {"a": "' + b"x" * 21_000_000 + b'"}}'
    assert (await storing.http.put(PATH, content=large, headers=kind)).status_code == 413


async def test_keys_do_not_see_those_of_others(make_gateway: MakeGateway, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry("alice", "alice-key") + entry("bob", "bob-key"))
    gateway = make_gateway(api_keys=keys, glossaries=tmp_path / "glossaries")
    alice, bob = ({"authorization": f"Bearer {name}-key"} for name in ("alice", "bob"))
    assert (await gateway.http.put(PATH, json={"terms": TERMS}, headers=alice)).status_code == 200
    assert (await gateway.http.get("/v1/glossaries", headers=bob)).json() == {"data": []}
    for verb in ("GET", "DELETE"):
        assert (await gateway.http.request(verb, PATH, headers=bob)).status_code == 404
    body = {"texts": "uno", "glossary_name": "kitchen"}
    for headers, status in ((alice, 200), (bob, 404)):
        response = await gateway.http.post("/v1/translate", json=body, headers=headers)
        assert response.status_code == status
    assert (await gateway.http.get(PATH, headers=alice)).status_code == 200


async def test_keys_do_not_see_those_of_others_over_grpc(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry("alice", "alice-key") + entry("bob", "bob-key"))
    gateway = make_gateway(grpc_port=0, api_keys=keys, glossaries=tmp_path / "glossaries")
    alice, bob = ((("authorization", f"Bearer {name}-key"),) for name in ("alice", "bob"))
    async with Front(gateway) as front:
        stub, name = front.stub, pb.GlossaryName(name="kitchen")
        await stub.PutGlossary(pb.Glossary(name="kitchen", terms=TERMS), metadata=alice)
        assert not (await stub.ListGlossaries(pb.ListGlossariesRequest(), metadata=bob)).data
        request = pb.TranslateRequest(texts=["uno"], glossary_name="kitchen", num_beams=1)
        assert [chunk async for chunk in stub.TranslateStream(request, metadata=alice)]
        for call in (
            stub.GetGlossary(name, metadata=bob),
            stub.DeleteGlossary(name, metadata=bob),
            stub.Translate(request, metadata=bob),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await stub.GetGlossary(name, metadata=alice)).terms


async def test_without_a_folder_there_are_none(gateway: Gateway) -> None:
    responses = [
        await gateway.http.put(PATH, json={"terms": TERMS}),
        await gateway.http.get(PATH),
        await gateway.http.delete(PATH),
        await gateway.http.post("/v1/translate", json={"texts": "a", "glossary_name": "b"}),
    ]
    for response in responses:
        assert response.status_code == 404
        assert "start it with --glossaries FOLDER" in error_of(response)["message"]
    assert (await gateway.http.get("/v1/glossaries")).json() == {"data": []}


async def test_the_same_over_grpc(make_gateway: MakeGateway, tmp_path: Path) -> None:
    gateway = make_gateway(grpc_port=0, glossaries=tmp_path)
    async with Front(gateway) as front:
        stub = front.stub
        info = await stub.PutGlossary(pb.Glossary(name="kitchen", terms=TERMS, source="es"))
        assert (info.name, info.size, info.source) == ("kitchen", 2, "es")
        assert not info.HasField("target")
        assert list((await stub.ListGlossaries(pb.ListGlossariesRequest())).data) == [info]
        name = pb.GlossaryName(name="kitchen")
        assert dict((await stub.GetGlossary(name)).terms) == TERMS
        request = pb.TranslateRequest(texts=["uno"], glossary_name="kitchen", num_beams=1)
        await stub.Translate(request)
        assert forced(gateway) == [{"one", "One"}]
        assert [chunk async for chunk in stub.TranslateStream(request)]
        assert (await stub.DeleteGlossary(name)).size == 2
        for call, code in (
            (stub.GetGlossary(name), grpc.StatusCode.NOT_FOUND),
            (stub.Translate(request), grpc.StatusCode.NOT_FOUND),
            (stub.GetGlossary(pb.GlossaryName(name="../x")), grpc.StatusCode.INVALID_ARGUMENT),
            (stub.PutGlossary(pb.Glossary(name="a")), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                await call
            assert refused.value.code() is code
