"""Bodies of requests: forms, codings, large ones read in turn, and what each bad one gets."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message

from serving.gateway.dialects.all_or_nothing import shorten
from serving.gateway.dialects.openai.embeddings import EmbeddingRequest, _encode
from serving.gateway.http.bodies import (
    PIECE_BYTES,
    _holds_objects,
    _is_list,
    _most_values,
    dump_vectors,
    read_form,
)
from serving.gateway.http.http_server import BYTES_PER_S, FREE_BYTES, PacedFlow, ReadingPace
from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import RED, Gateway, MakeGateway, error_of
from tests.serving.gateway.http.test_http_server import served
from triptych.client.conversion import to_proto
from triptych.messages import ItemError, OneOrMany, Usage
from triptych.tasks.embed import Embedding, EmbedResponse


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


@pytest.mark.parametrize("data", [b"", BODY, PACKED[:-9], PACKED[:12], PACKED + b"more"])
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


PART = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\xfe\r\n--x--'
JSON = {"content-type": "application/json"}


async def post_to_task(gateway: Gateway, path: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await gateway.http.post(f"/v1/{path}", content=content, headers=JSON)


MALFORMED = {
    "empty": b"",
    "cut off": b'{"texts": ["a"',
    "not UTF-8": b'{"texts": "\xff\xfe"}',
    "lone surrogate": b'{"texts": "\\ud800"}',
    "words": b"hello",
    "deep": b"[" * 100_000,
    "two values": b"{} {}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_json_is_400(gateway: Gateway, body: bytes) -> None:
    response = await post_to_task(gateway, "translate", body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "malformed_body"


WRONG = {
    "list": ("translate", [], None),
    "null": ("translate", None, None),
    "beams as bool": ("translate", {"texts": "a", "num_beams": True}, "num_beams"),
    "image as number": ("caption", {"images": [1]}, "images.0"),
    "labels as text": ("zero-shot", {"images": RED, "labels": "red"}, "labels"),
    "image address": ("caption", {"images": "https://example.com/a.png"}, "images.0"),
    "half a pair": ("classify", {"pairs": [{"first": "a"}]}, "pairs.0.second"),
}


@pytest.mark.parametrize(("path", "body", "field"), WRONG.values(), ids=WRONG)
async def test_wrong_field_is_422_and_named(
    gateway: Gateway, path: str, body: object, field: str | None
) -> None:
    response = await post_to_task(gateway, path, body)
    assert response.status_code == 422
    error = error_of(response)
    assert error["type"] == "invalid_request"
    assert error.get("field") == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
async def test_number_that_is_none_is_refused(gateway: Gateway, number: str) -> None:
    for task, items, field in (
        ("translate", "texts", "length_penalty"),
        ("generate", "prompts", "temperature"),
    ):
        body = f'{{"{items}": "a", "{field}": {number}}}'.encode()
        response = await post_to_task(gateway, task, body)
        assert (response.status_code, error_of(response)["field"]) == (422, field)


async def test_error_never_repeats_the_users_text(gateway: Gateway) -> None:
    secret = "hunter2"
    for body in ({"texts": [secret, 1]}, {"texts": {"x": secret}}, {"texts": "a", "model": secret}):
        response = await post_to_task(gateway, "translate", body)
        assert response.status_code >= 400
        assert secret not in response.text


@pytest.mark.parametrize("text", ["not base64!", "data:image/png,raw", "====", "ñ"])
async def test_text_that_is_no_base64_is_415(gateway: Gateway, text: str) -> None:
    assert (await post_to_task(gateway, "caption", {"images": text})).status_code == 415


async def test_task_without_model_is_404(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([])
    response = await post_to_task(gateway, "caption", {"images": RED})
    assert (response.status_code, error_of(response)["type"]) == (404, "unknown_model")


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1/translate/", "/v1", "/v1/%00"])
async def test_unknown_path_is_404(gateway: Gateway, path: str) -> None:
    response = await gateway.http.get(path)
    assert (response.status_code, error_of(response)["type"]) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/v1/translate", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET, HEAD"),
        ("PATCH", "/openapi.json", "GET, HEAD"),
        ("OPTIONS", "/v1/glossaries/a", "DELETE, GET, PUT"),
    ],
)
async def test_wrong_method_is_405_with_all_that_are_allowed(
    gateway: Gateway, verb: str, path: str, allowed: str
) -> None:
    response = await gateway.http.request(verb, path)
    assert (response.status_code, error_of(response)["type"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/caption", "/v1/zero-shot"])
async def test_large_upload_is_413(make_gateway: MakeGateway, path: str) -> None:
    gateway = make_gateway(payload_limit=1024)
    response = await gateway.http.post(path, files=[("images", ("x.png", bytes(5000)))])
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


MULTIPART = {"content-type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "multipart/form-data"}, b"--x\r\n"),
        (MULTIPART, b"not multipart at all"),
        (MULTIPART, PART),
    ],
)  # fmt: skip
async def test_damaged_multipart_is_refused(gateway: Gateway, headers: dict, body: bytes) -> None:
    response = await gateway.http.post("/v1/caption", content=body, headers=headers)
    assert response.status_code in {400, 422}
    assert error_of(response)["type"] in {"malformed_body", "invalid_request"}


@pytest.mark.parametrize("values", [b'"texts": [%b1]' % (b"1," * 200_000), b'"a": 1,' * 200_000])
async def test_body_of_very_many_values_is_refused_unread(gateway: Gateway, values: bytes) -> None:
    """Each wrong value costs a kilobyte: 20 MB of them, 10 GB and a minute."""
    body = b'{%b "texts": ["a"]}' % (values.rstrip(b",") + b",")
    response = await gateway.http.post("/v1/translate", content=body, headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


async def test_case_of_a_content_type_does_not_matter(gateway: Gateway) -> None:
    headers = {"content-type": "Multipart/Form-Data; boundary=x"}
    response = await gateway.http.post("/v1/caption", content=b"--x--\r\n", headers=headers)
    assert (response.status_code, error_of(response)["field"]) == (422, "images")


async def test_multipart_is_not_for_translation(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/translate", files={"texts": b"hola"})
    assert (response.status_code, error_of(response)["type"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_json_under_another_content_type_is_415(gateway: Gateway, kind: str | None) -> None:
    """A page of any site may make a browser send these."""
    headers = {"content-type": kind} if kind else {}
    for path in ("/v1/translate", "/v1/caption", "/v1/completions", "/hf/translate/tiny"):
        response = await gateway.http.post(path, content=b'{"texts": "a"}', headers=headers)
        assert response.status_code in (404, 415), path
        if path.startswith("/v1/t"):
            assert "content-type: application/json" in error_of(response)["message"]
    assert not gateway.inference.calls


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_content_types_of_json(gateway: Gateway, kind: str) -> None:
    headers = {"content-type": kind}
    body = b'{"texts": "a"}'
    await gateway.post("/v1/translate", content=body, headers=headers)


async def test_multipart_without_images_is_422(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/caption", files={"other": b"x"})
    assert (response.status_code, error_of(response)["field"]) == (422, "other")


async def test_multipart_number_that_is_none_is_422(gateway: Gateway) -> None:
    files, data = [("images", ("x.png", image_file("red")))], {"num_beams": "many"}
    response = await gateway.http.post("/v1/caption", files=files, data=data)
    assert (response.status_code, error_of(response)["field"]) == (422, "num_beams")


@pytest.mark.parametrize(
    ("examples", "status", "field"),
    [
        ("no object", 422, "examples"),
        ('{"input": "a"}', 422, "examples.1.output"),
        ('{"input": "a", "output": "b", "c": [%s]}' % ("1," * 200_000 + "1"), 413, None),
    ],
)  # fmt: skip
async def test_bad_object_of_a_form_is_refused(
    gateway: Gateway, examples: str, status: int, field: str | None
) -> None:
    data = {"prompts": "a", "examples": ['{"input": "a", "output": "b"}', examples]}
    files = [("images", ("x.png", image_file("red")))]
    response = await gateway.http.post("/v1/generate", files=files, data=data)
    assert (response.status_code, error_of(response).get("field")) == (status, field)


async def test_more_files_than_a_batch_are_refused(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_client_batch_size=2)
    files = [("images", ("x.png", image_file("red")))] * 3
    assert (await gateway.http.post("/v1/caption", files=files)).status_code == 422
    assert (await gateway.http.post("/v1/caption", files=files * 3)).status_code == 400


async def test_label_and_template_texts_beyond_admission_are_422(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_tokens=100)
    body = {"images": RED, "labels": [f"l{number}" for number in range(50)]}
    response = await post_to_task(gateway, "zero-shot", body)
    assert response.status_code == 422
    assert "at most 100" in error_of(response)["message"]


async def test_bug_is_500_without_its_text(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.inference.failures["tiny-translate"] = ValueError("secret place")
    response = await post_to_task(gateway, "translate", {"texts": "hola"})
    assert (response.status_code, error_of(response)["type"]) == (500, "internal")
    assert "secret place" not in response.text
    assert "secret place" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


async def test_repeated_field_of_a_form_is_refused_by_name(gateway: Gateway) -> None:
    files = [
        ("images", ("a.png", image_file("red"))),
        ("prompt", (None, "a")),
        ("prompt", (None, "b")),
    ]
    response = await gateway.post("/v1/caption", files=files, status=422)
    assert error_of(response)["field"] == "prompt"
    assert "2 times" in error_of(response)["message"]


_NUMBERS = np.float32([0.1, -0.0, 1, 1e-5, 1e-7, 3.4e38, 1e-45, 16777217, np.nan, np.inf, -np.inf])


def test_arrays_are_written_as_lists_are() -> None:
    arrays, lists = (
        EmbedResponse(
            model="ä",
            data=[
                Embedding.model_construct(index=0, embedding=vector),
                Embedding(index=1, error=ItemError(type="too_long", message='"'), embedding=None),
            ],
            usage=Usage(prompt_tokens=2),
        )
        for vector in (_NUMBERS.astype("<f8"), _NUMBERS.tolist())
    )
    assert (
        dump_vectors(arrays, exclude_none=True) == lists.model_dump_json(exclude_none=True).encode()
    )
    assert dump_vectors(arrays, exclude_none=False) == lists.model_dump_json().encode()
    assert arrays.model_dump_json() == lists.model_dump_json()
    assert to_proto(arrays).SerializeToString() == to_proto(lists).SerializeToString()
    with pytest.raises(TypeError):
        dump_vectors(object(), exclude_none=True)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 2047, 2048, 300_000])
def test_arrays_of_any_size_are_protobuf_messages(size: int) -> None:
    vector = np.arange(size, dtype="<f8")
    made = to_proto(Embedding.model_construct(index=7, embedding=vector))
    assert made == to_proto(Embedding(index=7, embedding=vector.tolist()))


def test_each_form_of_a_vector_has_the_same_numbers() -> None:
    vector = np.float32([0.6, -0.8, 0.1]).astype("<f8")
    floats = shorten(vector, None)
    packed = _encode(vector, EmbeddingRequest(model="m", input=["a"], encoding_format="base64"))
    assert isinstance(packed, str)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), "<f4"), floats)
    np.testing.assert_allclose(shorten(vector, 2), [0.6, -0.8], rtol=1e-7)
