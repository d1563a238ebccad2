"""Bodies: JSON, forms and multipart of unusual shapes, up to the limit of their size."""

from __future__ import annotations

import gzip
import random

from tests.attack.attack import Request, requests

_BOUNDARY = "b"
_MULTIPART = f"multipart/form-data; boundary={_BOUNDARY}"
_FORM = "application/x-www-form-urlencoded"
_SIZE = 19_000_000
_KEYED = ("/v1/translate", "/v1/embeddings", "/hf/translate/example-es-en", "/translate")


@requests("json-zeros", "lists of 9 million zeros in 4 APIs", at_once=2, is_short=True)
def _zeros(_: random.Random) -> list[Request]:
    zeros = b"[" + b"0," * (_SIZE // 2) + b"0]"
    fields = (b"texts", b"input", b"inputs", b"q")
    return [
        Request(path, b'{"%s": %s}' % (field, zeros))
        for path, field in zip(_KEYED, fields, strict=True)
    ]


@requests("json-texts-many", "lists of 4 million texts and of 3 million objects", at_once=2)
def _many(_: random.Random) -> list[Request]:
    texts = b'["a"' + b',"a"' * 4_000_000 + b"]"
    objects = b"[{}" + b",{}" * 6_000_000 + b"]"
    return [
        Request("/v1/translate", b'{"texts": %s}' % texts),
        Request("/v1/embeddings", b'{"input": %s}' % texts),
        Request("/embed", b'{"inputs": %s}' % texts),
        Request("/rerank", b'{"query": "a", "texts": %s}' % texts),
        Request("/v1/generate", b'{"prompts": "a", "examples": %s}' % objects),
        Request("/v1/chat/completions", b'{"model": "example-gpt", "messages": %s}' % objects),
        Request("/v1/zero-shot", b'{"images": "a", "labels": %s}' % texts),
    ]


@requests(
    "json-keys", "objects of 1.5 million keys, of one key 1.5 million times, of 19 MB", at_once=2
)
def _keys(_: random.Random) -> list[Request]:
    distinct = b",".join(b'"k%d":0' % n for n in range(1_500_000))
    return [
        Request("/v1/translate", b"{%s}" % distinct),
        Request("/v1/translate", b'{"texts": "a", "glossary": {%s}}' % distinct),
        Request("/v1/generate", b'{"prompts": "a", "logit_bias": {%s}}' % distinct),
        Request("/translate", b"{%s}" % b",".join([b'"q":"a"'] * 1_500_000)),
        Request("/v1/translate", b'{"%s": 1}' % (b"k" * _SIZE)),
    ]


@requests("json-deep", "brackets 9 million deep, open and closed", at_once=2)
def _deep(_: random.Random) -> list[Request]:
    half = _SIZE // 2
    return [
        Request("/v1/translate", b"[" * _SIZE),
        Request("/v1/translate", b'{"texts": ' + b"[" * half + b"]" * half + b"}"),
        Request("/translate", b'{"q":' * (_SIZE // 5)),
        Request("/v1/generate", b'{"prompts": "a", "json_schema": %s}' % (b'{"a":' * 3_000_000)),
        Request(
            "/v1/generate",
            b'{"prompts": "a", "json_schema": %s1%s}' % (b'{"not":' * 20_000, b"}" * 20_000),
        ),
    ]


@requests("json-numbers", "numbers of 19 million digits, and with exponents of as many", at_once=2)
def _numbers(_: random.Random) -> list[Request]:
    digits = b"9" * _SIZE
    return [
        Request("/v1/translate", b'{"texts": "a", "num_beams": %s}' % digits),
        Request("/translate", b'{"q": %s}' % digits),
        Request("/v1/generate", b'{"prompts": "a", "temperature": 1e%s}' % digits),
        Request("/v1/generate", b'{"prompts": "a", "temperature": 0.%s}' % digits),
        Request("/v1/embeddings", b'{"input": [%s]}' % digits),
        Request("/hf/generate/example-gpt", b'{"inputs": "a", "parameters": {"x": %s}}' % digits),
    ]


@requests("json-escapes", "3 million escapes, lone surrogates, UTF-16 and UTF-32", at_once=2)
def _escapes(_: random.Random) -> list[Request]:
    return [
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\\u0061" * 3_000_000)),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\\ud800" * 3_000_000)),
        Request("/translate", b'{"q": "%s"}' % (b"\\ud800" * 3_000_000)),
        Request("/translate", ('{"q": "%s"}' % ("a" * 4_000_000)).encode("utf-32")),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\xff" * _SIZE)),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\0" * _SIZE)),
        Request("/v1/translate", b" " * _SIZE),
    ]


@requests("gzip", "a body packed a thousand times smaller, with its Content-Encoding")
def _gzip(_: random.Random) -> list[Request]:
    packed = gzip.compress(b'{"texts": "%s"}' % (b"a" * 100_000_000), 1)
    headers = {"content-encoding": "gzip"}
    return [Request(path, packed, headers=headers) for path in _KEYED]


@requests("forms", "forms of 6 million fields and of 6 million escapes, without a key", at_once=2)
def _forms(_: random.Random) -> list[Request]:
    shapes = (b"a&" * 9_000_000, b"q=a&" * 4_500_000, b"q=" + b"%61" * 6_000_000, b"=" * _SIZE)
    return [
        Request(path, shape, kind=_FORM, is_keyed=is_keyed)
        for shape in shapes
        for path in ("/translate", "/detect")
        for is_keyed in (False, True)
    ]


def _part(name: str, content: bytes, *headers: str) -> bytes:
    lines = [f"--{_BOUNDARY}", f'content-disposition: form-data; name="{name}"', *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content + b"\r\n"


_END = f"--{_BOUNDARY}--\r\n".encode()


@requests("multipart-parts", "multipart forms of 200,000 parts and files", at_once=2, is_short=True)
def _parts(_: random.Random) -> list[Request]:
    fields = _part("texts", b"a") * 200_000 + _END
    files = (
        f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n\r\n'
    ).encode() * 150_000 + _END
    paths = ("/v1/caption", "/v1/classify", "/translate_file", "/translate")
    return [Request(path, body, kind=_MULTIPART) for path in paths for body in (fields, files)] + [
        Request("/translate_file", fields, kind=_MULTIPART, is_keyed=False)
    ]


@requests("multipart-headers", "parts with 500,000 headers, or one of 15 MB", at_once=2)
def _part_headers(_: random.Random) -> list[Request]:
    many = _part("a", b"", *(f"x-{n}: 1" for n in range(500_000))) + _END
    long = _part("a", b"", "x-long: " + "a" * 15_000_000) + _END
    named = _part("a" * 15_000_000, b"") + _END
    escaped = _part("\\" * 7_000_000 + '"' * 7_000_000, b"") + _END
    paths = ("/v1/caption", "/translate_file")
    return [
        Request(path, body, kind=_MULTIPART)
        for path in paths
        for body in (many, long, named, escaped)
    ]


@requests("multipart-boundaries", "nearly boundaries, nested forms, a preamble of 19 MB", at_once=2)
def _boundaries(_: random.Random) -> list[Request]:
    nearly = b"\r\n--b-" * (_SIZE // 6)
    nested = (
        _part("a", b"", f"content-type: {_MULTIPART}".replace("=b", f"={n}")) for n in range(50_000)
    )
    shapes = (
        b"--b\r\n\r\n" + nearly,
        _part("images", nearly) + _END,
        b"".join(nested),
        b"x" * _SIZE + b"\r\n" + _END,
        b"--b" + b"\r" * _SIZE,
        _END + b"\r\n" * (_SIZE // 2),
    )
    return [
        *(Request("/v1/caption", shape, kind=_MULTIPART) for shape in shapes),
        *(Request("/translate_file", shape, kind=_MULTIPART) for shape in shapes),
        Request("/v1/caption", b"a", kind="multipart/form-data; boundary=" + "-" * 60_000),
    ]
