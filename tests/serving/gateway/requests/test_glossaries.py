"""Stored glossaries: over HTTP and gRPC, and on disk."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest

from inference.errors import (
    InternalError,
    InvalidRequest,
    PreconditionFailed,
    SetupError,
    UnknownGlossary,
)
from serving.gateway.requests import glossaries
from serving.gateway.requests.glossaries import GlossaryStore
from tests.serving.gateway.admission.test_keys_and_budgets import write_keys
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, error_of, loaded
from tests.serving.gateway.test_grpc import Front
from triptych import triptych_pb2 as pb
from triptych.glossaries.messages import MAX_STORED_TERMS, Glossary

TERMS = {"uno": "one", "dos": "two"}
PATH = "/v1/glossaries/kitchen"


@pytest.fixture
def storing(make_gateway: MakeGateway, tmp_path: Path) -> Gateway:
    return make_gateway(glossaries=tmp_path / "glossaries")


async def translated(gateway: Gateway, text: str = "uno tres", **fields: object) -> str:
    body = {"texts": text, "glossary_name": "kitchen", **fields}
    response = await gateway.post("/v1/translate", json=body)
    return response.json()["data"][0]["text"]


def forced(gateway: Gateway) -> list[set[str]]:
    """The phrases that the last call forces."""
    (model,) = (one for one in gateway.service.catalog.models if "translate" in one.sections)
    phrases = gateway.inference.calls[-1].options.force_words_ids or ()
    return [{model.tokenizer.decode(ids) for ids in spellings} for spellings in phrases]


async def test_put_list_get_use_delete(storing: Gateway) -> None:
    put = await storing.put(PATH, json={"terms": TERMS, "source": "es", "target": "en"})
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
    response = await gateway.post("/v1/translate", json=body, status=422)
    assert error_of(response)["field"] == "source"
    assert "source is es" in error_of(response)["message"]


async def test_streams_take_names(storing: Gateway) -> None:
    await storing.http.put(PATH, json={"terms": TERMS})
    body = {"texts": "uno", "glossary_name": "kitchen", "stream": True, "num_beams": 1}
    response = await storing.post("/v1/translate", json=body)
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
    response = await storing.put(PATH, json=body, status=422)
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
    gateway = make_gateway(api_keys=write_keys(tmp_path), glossaries=tmp_path / "glossaries")
    alice, bob = ({"authorization": f"Bearer {name}-key"} for name in ("alice", "bob"))
    assert (await gateway.http.put(PATH, json={"terms": TERMS}, headers=alice)).status_code == 200
    assert (await gateway.http.get("/v1/glossaries", headers=bob)).json() == {"data": []}
    for verb in ("GET", "DELETE"):
        assert (await gateway.http.request(verb, PATH, headers=bob)).status_code == 404
    body = {"texts": "uno", "glossary_name": "kitchen"}
    for headers, status in ((alice, 200), (bob, 404)):
        await gateway.post("/v1/translate", json=body, headers=headers, status=status)
    assert (await gateway.http.get(PATH, headers=alice)).status_code == 200


async def test_keys_do_not_see_those_of_others_over_grpc(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    settings = {"api_keys": write_keys(tmp_path), "glossaries": tmp_path / "glossaries"}
    gateway = make_gateway(grpc_port=0, **settings)
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


FIRST, SECOND = {"terms": {"uno": "one"}}, {"terms": {"uno": "single"}}


async def put(gateway: Gateway, body: object = FIRST, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.put(PATH, json=body, headers=named)


async def tag_of(gateway: Gateway) -> str:
    return (await gateway.http.get(PATH)).headers["etag"]


async def test_a_tag_is_strong_and_changes_with_the_content(storing: Gateway) -> None:
    first = (await put(storing)).headers["etag"]
    assert first == await tag_of(storing)
    assert first[0] == first[-1] == '"'
    second = (await put(storing, SECOND)).headers["etag"]
    assert second == await tag_of(storing) != first
    assert (await put(storing)).headers["etag"] == first


async def test_a_put_whose_terms_are_stored_otherwise_has_no_tag(storing: Gateway) -> None:
    """Section 9.3.4: the client would take what it has sent for what is stored."""
    response = await put(storing, {"terms": {" uno  dos ": "one two"}})
    assert response.status_code == 200
    assert "etag" not in response.headers
    assert await tag_of(storing)


async def test_the_second_of_two_that_read_the_same_does_not_overwrite(storing: Gateway) -> None:
    await put(storing)
    read = await tag_of(storing)
    assert (await put(storing, SECOND, if_match=read)).status_code == 200
    late = await put(storing, {"terms": {"uno": "late"}}, if_match=read)
    assert (late.status_code, error_of(late)["type"]) == (412, "precondition_failed")
    assert (await storing.http.delete(PATH, headers={"if-match": read})).status_code == 412
    assert (await storing.http.get(PATH)).json()["terms"] == SECOND["terms"]
    read = await tag_of(storing)
    assert (await storing.http.delete(PATH, headers={"if-match": read})).status_code == 200
    assert (await storing.http.delete(PATH, headers={"if-match": read})).status_code == 404


async def test_a_star_is_any_glossary(storing: Gateway) -> None:
    assert (await put(storing, if_match="*")).status_code == 412
    assert (await put(storing, if_none_match="*")).status_code == 200
    assert (await put(storing, SECOND, if_none_match="*")).status_code == 412
    assert (await put(storing, SECOND, if_match="*")).status_code == 200
    assert (await storing.http.delete(PATH, headers={"if-none-match": "*"})).status_code == 412


async def test_if_match_compares_strongly_and_if_none_match_weakly(storing: Gateway) -> None:
    tag = (await put(storing)).headers["etag"]
    assert (await put(storing, SECOND, if_match=f"W/{tag}")).status_code == 412
    assert (await put(storing, SECOND, if_none_match=f"W/{tag}")).status_code == 412
    assert (await put(storing, SECOND, if_match=f'"other", ,\t{tag}')).status_code == 200


async def test_a_get_of_a_known_version_is_304(storing: Gateway) -> None:
    tag = (await put(storing)).headers["etag"]
    for given in (tag, f"W/{tag}", f'"a,b", {tag}', "*"):
        response = await storing.http.get(PATH, headers={"if-none-match": given})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
    other = await storing.http.get(PATH, headers={"if-none-match": '"other"'})
    assert (other.status_code, other.headers["etag"]) == (200, tag)
    assert (await storing.http.get(PATH, headers={"if-match": '"other"'})).status_code == 412
    assert (await storing.http.get(PATH, headers={"if-match": tag})).status_code == 200


async def test_several_lines_of_a_header_are_one_list(storing: Gateway) -> None:
    tag = (await put(storing)).headers["etag"]
    lines = [("if-match", '"other"'), ("if-match", tag)]
    await storing.put(PATH, json=SECOND, headers=lines)


async def test_both_conditions_have_to_hold(storing: Gateway) -> None:
    tag = (await put(storing)).headers["etag"]
    assert (await put(storing, SECOND, if_match=tag, if_none_match=tag)).status_code == 412


@pytest.mark.parametrize("given", ["abc", '"a', 'a"', '"a" "b"', '*, "a"', "", ",", '"a\x7f"'])
@pytest.mark.parametrize("name", ["if-match", "if-none-match"])
async def test_what_is_no_list_of_tags_is_refused(storing: Gateway, name: str, given: str) -> None:
    await put(storing)
    for response in (
        await storing.http.put(PATH, json=SECOND, headers={name: given}),
        await storing.http.get(PATH, headers={name: given}),
        await storing.http.delete(PATH, headers={name: given}),
    ):
        assert (response.status_code, error_of(response)["type"]) == (400, "malformed_body")
        assert name in error_of(response)["message"]
    assert (await storing.http.get(PATH)).json()["terms"] == FIRST["terms"]


async def test_a_glossary_that_is_not_there_is_404_whatever_is_required(storing: Gateway) -> None:
    for headers in ({"if-match": '"a"'}, {"if-none-match": "*"}):
        assert (await storing.http.get(PATH, headers=headers)).status_code == 404
        assert (await storing.http.delete(PATH, headers=headers)).status_code == 404


def glossary(name: str = "kitchen", rendering: str = "diner", **terms: str) -> Glossary:
    return Glossary(name=name, terms={"restaurante": rendering, **terms}, source="es")


@pytest.fixture
def store(tmp_path: Path) -> GlossaryStore:
    return GlossaryStore(tmp_path / "glossaries")


def rendering(store: GlossaryStore, owner: str = "alice") -> str:
    stored = store.find_cached(owner, "kitchen") or store.read(owner, "kitchen")
    found = stored.table.found("restaurante", "restaurante", 0, 11)
    return found.rendering


def test_what_is_put_is_read_by_another_process(store: GlossaryStore, tmp_path: Path) -> None:
    assert not (tmp_path / "glossaries").exists(), "made before it is needed"
    info, _ = store.put("alice", glossary(menu="list of dishes"))
    assert (info.name, info.source, info.target, info.size) == ("kitchen", "es", None, 2)
    other = GlossaryStore(tmp_path / "glossaries")
    assert other.listing("alice") == [info]
    assert other.get("alice", "kitchen")[0] == glossary(menu="list of dishes")
    assert rendering(other) == "diner"
    store.put("alice", glossary(rendering="eatery"))
    assert rendering(other) == "eatery", "kept although the file has changed"
    assert store.delete("alice", "kitchen").size == 1
    with pytest.raises(UnknownGlossary):
        rendering(other)


def test_folders_are_closed_to_other_users(store: GlossaryStore, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store.put("alice", Glossary(name="a", source="es", target="en", terms={"a": "b"}))
    finally:
        os.umask(before)
    folder = tmp_path / "glossaries"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.iterdir())] == [
        *(0o700, 0o700)
    ]


def test_unchanged_glossary_is_read_once(store: GlossaryStore) -> None:
    store.put("alice", glossary())
    assert store.find_cached("alice", "kitchen") is None
    stored = store.read("alice", "kitchen")
    assert store.find_cached("alice", "kitchen") is stored


def test_memory_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "_KEPT", 2)
    store = GlossaryStore(tmp_path)
    for name in ("a", "b", "c"):
        store.put("alice", glossary(name))
        store.read("alice", name)
    assert store.find_cached("alice", "a") is None
    assert store.find_cached("alice", "b")


def test_owners_do_not_share(store: GlossaryStore) -> None:
    store.put("alice", glossary())
    assert store.listing("bob") == []
    for use in (store.get, store.read, store.delete, store.find_cached):
        with pytest.raises(UnknownGlossary):
            use("bob", "kitchen")
    store.put("bob", glossary(rendering="eatery"))
    assert (rendering(store, "alice"), rendering(store, "bob")) == ("diner", "eatery")


def test_no_owner_leaves_the_folder(store: GlossaryStore, tmp_path: Path) -> None:
    for owner in (".", "..", ".hidden"):
        store.put(owner, glossary())
        assert [info.name for info in store.listing(owner)] == ["kitchen"]
    assert [path.name for path in tmp_path.iterdir()] == ["glossaries"]


def test_terms_have_one_form(store: GlossaryStore) -> None:
    store.put("alice", Glossary(name="a", terms={" cafe\u0301  solo ": " a\n\u2028b\x85"}))
    assert store.get("alice", "a")[0].terms == {"café solo": "a b"}
    store.put("alice", Glossary(name="b", terms={"x": "y", " x": "y "}))
    assert store.get("alice", "b")[0].terms == {"x": "y"}
    for terms in ({"x": "y", " x": "z"}, {"x": " "}, {"\t": "y"}):
        with pytest.raises(InvalidRequest):
            store.put("alice", Glossary(name="c", terms=terms))
    assert [info.name for info in store.listing("alice")] == ["a", "b"]


def test_there_are_limits(store: GlossaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_GLOSSARIES", 2)
    monkeypatch.setattr(glossaries, "MAX_CHARACTERS", 30)
    store.put("alice", glossary("a"))
    store.put("alice", glossary("b"))
    with pytest.raises(InvalidRequest, match="at most 2 glossaries"):
        store.put("alice", glossary("c"))
    store.put("alice", glossary("b", rendering="eatery"))
    store.put("bob", glossary("c"))
    with pytest.raises(InvalidRequest, match="terms has 41 characters, at most 30"):
        store.put("alice", glossary("a", rendering="x" * 30))


@pytest.mark.parametrize("content", ["", "{}", "[]\n[]", '{"size": 1}\n{"x"', "\0", "{}\n{}\n"])
def test_damaged_file_is_named_and_may_be_replaced_or_deleted(
    store: GlossaryStore, tmp_path: Path, content: str
) -> None:
    store.put("alice", glossary())
    store.put("alice", glossary("other"))
    (file,) = tmp_path.rglob("kitchen.json")
    file.write_text(content)
    with pytest.raises(InternalError, match="'kitchen' is damaged: put or delete it"):
        store.read("alice", "kitchen")
    assert "other" in [info.name for info in store.listing("alice")]
    store.put("alice", glossary())
    assert rendering(store) == "diner"
    file.write_text(content)
    assert store.delete("alice", "kitchen").name == "kitchen"
    with pytest.raises(UnknownGlossary):
        store.read("alice", "kitchen")


def test_a_file_is_no_folder_and_no_partial_file_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SetupError, match="is not a folder"):
        GlossaryStore(file)
    store = GlossaryStore(tmp_path / "a")
    store.put("alice", glossary())
    (folder,) = (tmp_path / "a").iterdir()
    (folder / "blocked.json").mkdir()
    with pytest.raises(InternalError, match="cannot write its folder"):
        store.put("alice", glossary("blocked"))
    assert sorted(file.name for file in folder.iterdir()) == ["blocked.json", "kitchen.json"]


def test_writers_and_readers_at_once_see_whole_glossaries(tmp_path: Path) -> None:
    stores = [GlossaryStore(tmp_path / "a") for _ in range(3)]
    stores[0].put("alice", glossary())
    is_done = threading.Event()
    seen: set[int] = set()

    def write(number: int) -> None:
        for turn in range(30):
            terms = {f"term {k}": f"{number} {turn}" for k in range(200)}
            stores[number].put("alice", Glossary(name="kitchen", terms=terms))
            if turn % 5 == number:
                with suppress(UnknownGlossary):
                    stores[number].delete("alice", "kitchen")

    def read(number: int) -> None:
        while not is_done.is_set():
            with suppress(UnknownGlossary):
                found = stores[number].get("alice", "kitchen")[0].terms
                assert len(set(found.values())) == 1
                seen.add(len(found))
                stores[number].read("alice", "kitchen")

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read, number) for number in range(2)]
        for writer in [pool.submit(write, number) for number in range(3)]:
            writer.result()
        is_done.set()
        for reader in readers:
            reader.result()
    assert seen <= {1, 200}
    assert 200 in seen
    assert len(list((tmp_path / "a").rglob("*"))) <= 2, "a partial file is left"


def test_writers_at_once_keep_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_GLOSSARIES", 5)
    stores = [GlossaryStore(tmp_path) for _ in range(4)]

    def put(number: int) -> bool:
        try:
            stores[number % 4].put("alice", glossary(f"g{number}"))
        except InvalidRequest:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(40))) == 5
    assert len(stores[0].listing("alice")) == 5


def test_of_writers_that_read_the_same_version_one_writes(tmp_path: Path) -> None:
    stores = [GlossaryStore(tmp_path) for _ in range(4)]
    stores[0].put("alice", glossary())
    _, read = stores[0].get("alice", "kitchen")

    def check(stored: str | None) -> None:
        if stored != read:
            raise PreconditionFailed("changed meanwhile")

    def put(number: int) -> bool:
        try:
            stores[number % 4].put("alice", glossary(rendering=f"r{number}"), check)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(40))) == 1
    with pytest.raises(PreconditionFailed):
        stores[0].delete("alice", "kitchen", check)
    assert rendering(stores[0]).startswith("r")
