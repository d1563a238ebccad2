"""Bodies with `Content-Encoding`: decoded within the limits, or refused by name."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator

import httpx
import pytest

from serving.gateway.http.content_coding import PIECE_BYTES
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

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
