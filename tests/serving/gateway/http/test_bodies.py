"""Bodies of requests: forms, codings, and large ones read in turn."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message

from serving.gateway.http.bodies import (
    PIECE_BYTES,
    _holds_objects,
    _is_list,
    _most_values,
    read_form,
)
from serving.gateway.http.http_server import BYTES_PER_S, FREE_BYTES, PacedFlow, ReadingPace
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of
from tests.serving.gateway.http.test_http_server import served
from triptych.messages import OneOrMany


class Row(BaseModel):
    text: str


class Form(BaseModel):
    plain: str
    optional: str | None = None
    texts: OneOrMany
    optional_texts: OneOrMany | None = None
    labels: list[str] = Field(max_length=7)
    optional_labels: Annotated[list[str], Field(max_length=7)] | None = None
    bounded: Annotated[str, Field(max_length=7)]
    row: Row | None = None
    rows: list[Row] | None = Field(default=None, max_length=7)
    weights: Annotated[dict[int, float], Field(max_length=7)] | None = None


@pytest.mark.parametrize(
    ("name", "is_list", "most"),
    [
        ("plain", False, 1),
        ("optional", False, 1),
        ("texts", True, 33),
        ("optional_texts", True, 33),
        ("labels", True, 8),
        ("optional_labels", True, 8),
        ("bounded", False, 1),
        ("rows", True, 8),
    ],
)
def test_lists_are_found_however_they_are_annotated(name: str, is_list: bool, most: int) -> None:
    field = Form.model_fields[name]
    assert _is_list(field) is is_list
    assert _most_values(field, 33) == most


def test_fields_of_objects_are_found_however_they_are_annotated() -> None:
    found = {name for name, field in Form.model_fields.items() if _holds_objects(field)}
    assert found == {"row", "rows", "weights"}


async def test_form_that_nearly_has_its_boundary_everywhere_does_not_stop_others() -> None:
    file = (
        b'--b\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n%s\r\n--b--\r\n'
    )
    body = file % (b"\r\n--b-" * 150_000)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    await request.body()
    async with read_form(request, max_files=1, max_fields=1) as form:
        image = form["images"]
        assert isinstance(image, UploadFile)
        assert await image.read() == b"\r\n--b-" * 150_000
    ticking.cancel()
    assert turns > 50  # one for each piece


BODY = json.dumps({"texts": ["a b"] * 8, "source": "es"}).encode()
PACKED = gzip.compress(BODY, mtime=0)
PATH = "/v1/translate"


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


CODED = {
    "gzip": ("gzip", gzip.compress(BODY, mtime=0)),
    "x-gzip": ("X-GZIP", gzip.compress(BODY, mtime=0)),
    "gzip of two members": ("gzip", gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:])),
    "deflate": ("deflate", zlib.compress(BODY)),
    "raw deflate": ("deflate", raw_deflate(BODY)),
    "identity": ("identity, gzip", gzip.compress(BODY, mtime=0)),
    "none": ("identity", BODY),
    "empty": ("", BODY),
}


async def post(gateway: Gateway, coding: str, body: object, path: str = PATH) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return await gateway.http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("name", CODED)
async def test_coded_bodies_are_those_without_a_coding(gateway: Gateway, name: str) -> None:
    coding, data = CODED[name]
    plain = await post(gateway, "", BODY)
    assert plain.status_code == 200
    for size in (1, 7, len(data)):

        async def parts(size: int = size) -> Iterator[bytes]:
            for start in range(0, len(data), size):
                yield data[start : start + size]

        answer = await post(gateway, coding, parts())
        assert (answer.status_code, answer.json()["data"]) == (200, plain.json()["data"])


async def test_other_codings_are_refused_by_name_in_each_dialect(gateway: Gateway) -> None:
    for coding in ("br", "zstd", "gzip, gzip", "compress"):
        answer = await post(gateway, coding, BODY)
        assert answer.status_code == 415
        assert coding in error_of(answer)["message"]
    for path in ("/v1/completions", "/generate", "/hf/generate/tiny-generate", "/translate"):
        answer = await post(gateway, "br", BODY, path)
        assert answer.status_code in (400, 415), path
        assert "content-encoding br" in answer.text, path


@pytest.mark.parametrize(
    "data",
    [b"", BODY, PACKED[:-9], PACKED[:12], PACKED + b"more"],
)
async def test_what_is_not_of_its_coding_is_malformed(gateway: Gateway, data: bytes) -> None:
    answer = await post(gateway, "gzip", data)
    assert (answer.status_code, error_of(answer)["type"]) == (400, "malformed_body")


async def test_a_body_is_counted_while_it_unfolds(make_gateway: MakeGateway) -> None:
    limit = 10 * PIECE_BYTES
    gateway = make_gateway(payload_limit=limit)
    bomb = gzip.compress(b" " * 100 * limit, mtime=0)
    assert len(bomb) < limit
    for coding, data in (("gzip", bomb), ("deflate", zlib.compress(b" " * 100 * limit))):
        answer = await post(gateway, coding, data)
        assert (answer.status_code, error_of(answer)["type"]) == (413, "payload_too_large")
    fits = b" " * (limit - len(BODY)) + BODY
    assert (await post(gateway, "gzip", gzip.compress(fits, mtime=0))).status_code == 200
    assert (await post(gateway, "gzip", gzip.compress(b" " + fits, mtime=0))).status_code == 413
    empty = gzip.compress(b"", mtime=0) * (limit // 20 + 1)
    assert (await post(gateway, "gzip", empty)).status_code == 413


async def test_a_part_of_a_stored_glossary_is_refused(gateway: Gateway) -> None:
    headers = {"content-range": "bytes 0-9/20"}
    answer = await gateway.http.put("/v1/glossaries/a", json={"terms": {"a": "b"}}, headers=headers)
    assert (answer.status_code, error_of(answer)["type"]) == (400, "malformed_body")


SIZE = 262_144
SHARE_S = SIZE / BYTES_PER_S


class Clock:
    """An event loop whose time passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, work: Callable[[], object]) -> None:
        self.later.append((self.now_s + delay_s, work))

    def run_to(self, now_s: float) -> None:
        self.now_s = now_s
        due = [work for at_s, work in self.later if at_s <= now_s]
        self.later = [(at_s, work) for at_s, work in self.later if at_s > now_s]
        for work in due:
            work()


class Transport:
    is_reading = True
    is_closed = False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed


def flows(count: int) -> tuple[Clock, list[Transport], list[PacedFlow]]:
    clock: Any = Clock()
    transports: list[Any] = [Transport() for _ in range(count)]
    pace = ReadingPace()
    return clock, transports, [PacedFlow(one, clock, pace) for one in transports]


def read(flow: PacedFlow, size: int) -> None:
    """What the protocol does with a part of a body, and the application with its message."""
    flow.paced_bytes = size
    flow.pause_reading()
    flow.resume_reading()


def test_small_bodies_are_read_at_once() -> None:
    clock, (transport,), (flow,) = flows(1)
    read(flow, 0)
    assert transport.is_reading
    assert clock.later == []


def test_large_bodies_are_read_in_turn() -> None:
    clock, transports, made = flows(4)
    for flow in made:
        read(flow, SIZE)
        flow.resume_reading()  # again, which takes no second place
    assert [at_s - 100 for at_s, _ in clock.later] == pytest.approx(
        [SHARE_S * place for place in (1, 2, 3, 4)]
    )
    for place in range(1, 5):
        assert sum(one.is_reading for one in transports) == place - 1
        clock.run_to(100 + SHARE_S * (place + 0.01))
    assert all(one.is_reading for one in transports)
    read(made[0], SIZE)  # later: unused time is not saved up
    assert clock.later[0][0] - clock.now_s == pytest.approx(SHARE_S, rel=0.01)


def test_closed_connections_do_not_read() -> None:
    clock, (transport,), (flow,) = flows(1)
    read(flow, SIZE)
    transport.is_closed = True
    clock.run_to(200)
    assert not transport.is_reading


class Recorder(ReadingPace):
    """Counts the bytes that connections waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.paced_bytes = 0

    def reserve(self, size: int, now_s: float) -> float:
        self.paced_bytes += size
        return super().reserve(size, now_s)


async def test_large_bodies_arrive_whole_on_connections_that_go_on() -> None:
    pace = Recorder()
    async with served(pace=pace) as server:

        async def post_bodies() -> list[bytes]:
            reader, writer = await server.connect()
            sizes = []
            for size in (FREE_BYTES * 5, 100, FREE_BYTES * 3):
                writer.write(
                    f"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n".encode()
                )
                writer.write(bytes(size))
                await reader.readuntil(b"\r\n\r\n")
                sizes.append(await reader.readexactly(len(str(size))))
            writer.close()
            return sizes

        async with asyncio.timeout(20):
            every = await asyncio.gather(*(post_bodies() for _ in range(4)))
    assert every == [[b"1250000", b"100", b"750000"]] * 4
    large = 4 * (FREE_BYTES * 5 + FREE_BYTES * 3)
    assert large / 2 < pace.paced_bytes <= large


async def test_bodies_below_the_limit_are_not_paced() -> None:
    pace = Recorder()
    async with served(pace=pace) as server:
        size = FREE_BYTES - 1000
        head = f"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
        answer = await server.exchanged(head.encode() + bytes(size))
        assert answer.endswith(str(size).encode())
    assert pace.paced_bytes == 0
