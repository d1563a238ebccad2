"""`If-Match` and `If-None-Match` on the routes of stored glossaries (RFC 9110, section 13)."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

PATH = "/v1/glossaries/kitchen"
FIRST, SECOND = {"terms": {"uno": "one"}}, {"terms": {"uno": "single"}}


@pytest.fixture
def storing(make_gateway: MakeGateway, tmp_path: Path) -> Gateway:
    return make_gateway(glossaries=tmp_path / "glossaries")


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
    deleted = await storing.http.delete(PATH, headers={"if-match": read})
    assert deleted.status_code == 412
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
    response = await storing.http.put(PATH, json=SECOND, headers=lines)
    assert response.status_code == 200


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
