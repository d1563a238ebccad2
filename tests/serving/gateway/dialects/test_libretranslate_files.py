"""`/translate_file` and the addresses that it answers with, of one worker and of several."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest

from inference.errors import Overloaded, PayloadTooLarge, UnknownRoute
from serving.gateway.dialects.libretranslate.downloads import (
    LIFETIME_S,
    Downloads,
    DownloadStore,
    FolderDownloads,
)
from tests.serving import document_samples
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.dialects.test_libretranslate import KEY, error_of, translator
from tests.serving.gateway.http.test_page import served
from tests.serving.test_process_pool import is_gone, sleep
from tests.serving.waiting import Clock

FIELDS = {"source": "es", "target": "en"}


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([translator("spanish", ("es", "en"))])


async def send(
    gateway: Gateway, name: str, content: bytes, fields: dict[str, str] = FIELDS
) -> httpx.Response:
    return await gateway.http.post("/translate_file", data=fields, files={"file": (name, content)})


async def fetched(gateway: Gateway, response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, response.text
    return await gateway.http.get(response.json()["translatedFileUrl"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"hola\n\n12\n"),
        ("a.html", b"<p>hay <b>veinte</b> mesas</p>"),
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nhola\n"),
    ],
)
async def test_translated_file_is_fetched(gateway: Gateway, name: str, content: bytes) -> None:
    response = await send(gateway, name, content)
    url = urlsplit(response.json()["translatedFileUrl"])
    assert (url.scheme, url.netloc) == ("http", "gateway")
    file = await fetched(gateway, response)
    assert file.content == content  # the tiny model repeats its words
    assert file.headers["content-disposition"].endswith(f'"a_en{name[1:]}"')
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in file.headers["content-security-policy"]
    assert {call.model for call in gateway.inference.calls} == {"spanish"}


async def test_one_long_sentence_does_not_refuse_the_file(gateway: Gateway) -> None:
    content = b"hola\n" + b"uno dos, " * 60 + b"tres\nadios\n"
    file = await fetched(gateway, await send(gateway, "a.txt", content))
    assert file.content == content  # the tiny model repeats its words
    assert len(gateway.inference.calls) > 5


async def test_office_files_are_translated(gateway: Gateway) -> None:
    for name, content, texts in (
        ("a.docx", document_samples.word_file(), document_samples.word_texts),
        ("a.pptx", document_samples.slides_file(), document_samples.slides_texts),
        ("a.odt", document_samples.open_file(), document_samples.open_texts),
    ):
        file = await fetched(gateway, await send(gateway, name, content))
        spaced = [one.split() for one in texts(content)]  # tiny words have one space between
        assert [one.split() for one in texts(file.content)] == spaced
        assert gateway.inference.calls
        gateway.inference.calls.clear()


async def test_source_is_identified_and_one_language_needs_no_model(gateway: Gateway) -> None:
    text = "¿Dónde está la vieja lámpara?"
    fields = {"source": "auto", "target": "en"}
    await fetched(gateway, await send(gateway, "a.txt", text.encode(), fields))
    assert len(gateway.inference.calls) == 1
    fields = {"source": "en", "target": "en"}
    same = await fetched(gateway, await send(gateway, "a.txt", b"a <b> c", fields))
    assert (same.content, len(gateway.inference.calls)) == (b"a <b> c", 1)


async def test_names_are_safe_and_cannot_be_guessed(gateway: Gateway) -> None:
    name = '../..\\x/"añ o\r\n.b.TXT'
    responses = [await send(gateway, name, b"hola") for _ in range(2)]
    first, second = (urlsplit(one.json()["translatedFileUrl"]).path for one in responses)
    assert first != second
    token, _, rest = first.removeprefix("/download_file/").partition(".")
    assert len(token) >= 43
    assert rest.endswith("_en.txt")
    assert set(rest) <= set("abcdefghijklmnopqrstuvwxyz_.%0123456789ABCDEF")
    for path in (token, f"{token}.txt", f"x{token}.{rest}", "../metrics", "%00", "a" * 5000):
        response = await gateway.http.get(f"/download_file/{path}")
        assert response.status_code == 404 or path == "../metrics"


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        ({"data": FIELDS}, "file: Field required"),
        ({"data": FIELDS, "files": {"other": ("a.txt", b"a")}}, "file: Field required"),
        ({"files": {"file": ("a.txt", b"a")}}, "source: Field required"),
        ({"data": FIELDS, "files": {"file": ("a.exe", b"a")}}, "supported are: .txt"),
        ({"data": FIELDS, "files": {"file": ("a.docx", b"a")}}, "damaged"),
        ({"data": FIELDS | {"target": "fr"}, "files": {"file": ("a.txt", b"a")}}, "target"),
        ({"data": FIELDS, "files": {"file": ("a.txt", b"a " * 5000)}}, "segment"),
        ({"json": FIELDS}, "file: Field required"),
        (
            {"data": FIELDS, "files": [("file", ("a.txt", b"a")), ("file", ("b.txt", b"a"))]},
            "files",
        ),
    ],
)
async def test_what_is_no_file_to_translate_is_refused(
    gateway: Gateway, request_of: dict[str, Any], message: str
) -> None:
    response = await gateway.http.post("/translate_file", **request_of)
    assert (response.status_code, message in error_of(response)) == (400, True), response.text


async def test_key_is_a_field_of_the_form(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], api_key=KEY)
    assert (await send(gateway, "a.txt", b"hola")).status_code == 401
    wrong = await send(gateway, "a.txt", b"hola", FIELDS | {"api_key": "wrong"})
    assert wrong.status_code == 403
    right = await send(gateway, "a.txt", b"hola", FIELDS | {"api_key": KEY})
    assert (await fetched(gateway, right)).content == b"hola"


async def test_settings_list_the_formats(gateway: Gateway) -> None:
    settings = (await gateway.http.get("/frontend/settings")).json()
    assert settings["filesTranslation"] is True
    assert {".txt", ".html", ".srt", ".docx", ".odt", ".pptx", ".epub"} <= set(
        settings["supportedFilesFormat"]
    )


def test_browsers_follow_the_address() -> None:
    with served() as address:
        files = {"file": ("a.txt", b"hola")}
        response = httpx.post(f"{address}/translate_file", data=FIELDS, files=files)
        assert httpx.get(response.json()["translatedFileUrl"]).content == b"hola"


@pytest.mark.parametrize("public", ["https://example.org/lt", "https://example.org/lt/"])
async def test_address_is_the_one_that_a_proxy_publishes(
    make_gateway: MakeGateway, public: str
) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], public_url=public)
    response = await send(gateway, "a.txt", b"hola")
    address = response.json()["translatedFileUrl"]
    assert address.startswith("https://example.org/lt/download_file/")


def form(*parts: tuple[str, str], size: int = 300_000) -> tuple[bytes, dict[str, str]]:
    """A form of these fields and then a file."""
    lines = [
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), v.encode())
        for n, v in parts
    ]
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    body = b"".join([*lines, head, b"\n" * size, b"\r\n--x--\r\n"])
    return body, {"content-type": "multipart/form-data; boundary=x"}


async def chunks(body: bytes, sent: list[int]) -> Any:
    for begin in range(0, len(body), 10_000):
        part = body[begin : begin + 10_000]
        sent.append(len(part))
        yield part


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((("source", "es"), ("target", "en"), ("api_key", KEY)), 200),
        ((("source", "es"), ("target", "en"), ("api_key", "wrong")), 401),
        ((("source", "es"), ("target", "en")), 401),
        ((("source", "es" * 50_000), ("api_key", KEY)), 401),
    ],
    ids=["early", "wrong", "none", "late"],
)
async def test_large_file_needs_its_key_before_it(
    make_gateway: MakeGateway, fields: tuple[tuple[str, str], ...], status: int
) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], api_key=KEY)
    body, kind = form(*fields)
    sent: list[int] = []
    response = await gateway.post(
        "/translate_file", content=chunks(body, sent), headers=kind, status=status
    )
    if status == 401:
        assert sum(sent) <= 80_000, "the rest is not read"
        assert "api_key before it" in error_of(response)
    headers = {"authorization": f"Bearer {KEY}", **kind}
    late, _ = form(("source", "es"), ("target", "en"))
    assert (await gateway.http.post("/translate_file", content=late, headers=headers)).is_success


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
async def test_large_body_needs_its_key_in_the_header(make_gateway: MakeGateway, kind: str) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], api_key=KEY)
    fields = {"source": "es", "target": "en", "api_key": KEY, "q": "12 " * 30_000}
    body = json.dumps(fields) if kind == "application/json" else urlencode(fields)
    sent: list[int] = []
    refused = await gateway.http.post(
        "/translate", content=chunks(body.encode(), sent), headers={"content-type": kind}
    )
    assert (refused.status_code, "Authorization" in error_of(refused)) == (401, True)
    assert sum(sent) <= 80_000
    await gateway.post("/translate", content=body, headers={"content-type": kind}, status=401)
    headers = {"content-type": kind, "authorization": f"Bearer {KEY}"}
    served = await gateway.http.post("/translate", content=body, headers=headers)
    assert served.status_code in (200, 400), "read, and refused for its length"
    assert "key" not in served.text


async def test_deadline_ends_the_reading_of_a_file(
    make_gateway: MakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], request_timeout=2)
    monkeypatch.setattr("serving.gateway.dialects.libretranslate.files.file_passages", sleep)
    file = tmp_path / "pid"
    response = await send(gateway, "a.txt", b"hola\0" + str(file).encode())
    assert response.status_code == 504
    assert is_gone(int(file.read_text()))


@pytest.fixture
def clock() -> Clock:
    return Clock(1000)


Workers = tuple[DownloadStore, DownloadStore]


@pytest.fixture(params=["memory", "folder"])
def workers(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Workers:
    """The store of one worker alone, in memory, or those of two that share a folder."""
    if request.param == "memory":
        return (Downloads(100, clock),) * 2
    return FolderDownloads(tmp_path, 100, clock), FolderDownloads(tmp_path, 100, clock)


def test_any_worker_answers(workers: Workers) -> None:
    one, two = workers
    keys = [one.put("a_en.txt", b"one"), two.put("a_en.txt", b"")]
    for _ in range(2):
        for worker in workers:
            assert [worker.get(key) for key in keys] == [("a_en.txt", b"one"), ("a_en.txt", b"")]


def test_files_are_forgotten_in_time(workers: Workers, clock: Clock, tmp_path: Path) -> None:
    one, two = workers
    first = one.put("a.txt", b"one")
    clock.now_s += LIFETIME_S / 2
    second = one.put("a.txt", b"two")
    two.get(second)
    clock.now_s += LIFETIME_S / 2
    with pytest.raises(UnknownRoute):
        two.get(first)
    assert two.get(second)[1] == b"two"
    clock.now_s += LIFETIME_S
    two.put("a.txt", bytes(100))
    assert sum(path.is_file() for path in tmp_path.rglob("*")) <= 1, "the others are forgotten"


def test_size_is_of_all_workers(workers: Workers, clock: Clock) -> None:
    one, two = workers
    with pytest.raises(PayloadTooLarge):
        one.put("a.txt", bytes(101))
    fetched = one.put("a.txt", bytes(60))
    two.get(fetched)
    waiting = two.put("b.txt", bytes(60))  # takes the place of the one that was fetched
    with pytest.raises(UnknownRoute):
        one.get(fetched)
    clock.now_s += 100
    with pytest.raises(Overloaded) as caught:
        one.put("c.txt", bytes(60))
    assert caught.value.retry_after_s == LIFETIME_S - 100
    assert one.get(waiting)[1] == bytes(60)


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "../counts", "a", "A" * 43, f"{'A' * 43}./x", f"{'A' * 43}.a\0", "/etc/passwd"],
)
def test_other_names_are_no_files(workers: Workers, key: str) -> None:
    with pytest.raises(UnknownRoute):
        workers[0].get(key)


def test_full_disk_is_an_overload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Overloaded):
        FolderDownloads(tmp_path).put("a.txt", b"one")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_of_one_key_leave_room_for_those_of_others(workers: Workers, clock: Clock) -> None:
    one, two = workers
    first = one.put("a.txt", b"a" * 30, "alice")
    clock.now_s += 10
    with pytest.raises(Overloaded) as refused:
        two.put("a.txt", b"a" * 30, "alice")
    assert refused.value.retry_after_s == LIFETIME_S - 10
    bobs = two.put("b.txt", b"b" * 50, "bob")
    assert two.get(first) == ("a.txt", b"a" * 30)
    one.put("a.txt", b"a" * 50, "alice")
    assert one.get(bobs) == ("b.txt", b"b" * 50)
