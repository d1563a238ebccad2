"""Random requests over HTTP and gRPC, and what every answer must be."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any
from urllib.parse import urlencode

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from triptych import triptych_pb2 as pb

PICTURE = (Path(__file__).parents[2] / "examples/demo/pictures/scene-1.png").read_bytes()
_PNG_20000 = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0N \0\0N \x08\x02\0\0\0" + bytes(4)
_IMAGE = base64.b64encode(PICTURE).decode()
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
_BOUNDARY = "b0und4ry"
MULTIPART = f"multipart/form-data; boundary={_BOUNDARY}"
GLOSSARY = "/v1/glossaries/kitchen"
Body = dict[str, Any]

BODIES: Mapping[str, tuple[Body, ...]] = {
    "/v1/translate": (
        {"texts": ["El mundo no es suficiente."], "model": "example-es-en", "max_new_tokens": 8},
        {"texts": "Hola.", "model": "example-es-en", "num_beams": 2, "alternatives": 2},
        {"texts": "Hola, {x}.", "glossary": {"hola": "hi"}, "do_not_translate": ["{x}"]},
        {"texts": "Hola. Hola.", "glossary_name": "kitchen", "stream": True, "num_beams": 1},
    ),
    "/v1/caption": ({"images": [_IMAGE], "model": "example-captioner", "max_new_tokens": 6},),
    "/v1/zero-shot": ({"images": [_IMAGE], "labels": ["red circle", "blue square"]},),
    "/v1/generate": (
        {"prompts": ["a small red"], "max_new_tokens": 6, "temperature": 0.8, "seed": 3, "n": 2},
        {"prompts": "a large", "max_new_tokens": 6, "stop": ["\n"], "logprobs": 2, "stream": True},
        {"prompts": "a", "examples": [{"input": "a", "output": "b"}], "max_new_tokens": 4},
    ),
    "/v1/embed": (
        {"texts": ["red circle", "star"], "model": "example-clip"},
        {"images": _IMAGE, "model": "example-clip"},
    ),
    "/v1/classify": (
        {"texts": ["what a day"], "model": "example-bert-sentiment", "top_k": 2},
        {"images": [_IMAGE], "model": "example-vit", "return_attention": True},
    ),
    "/v1/fill-mask": ({"texts": ["My sister [MASK] a teacher."], "top_k": 3},),
    "/v1/tag": ({"texts": ["Last Friday, Ana sold a lamp."], "aggregation": "simple"},),
    "/v1/rerank": ({"query": "Where is Ana?", "documents": ["Ana is in Rome.", "Pedro."]},),
    "/v1/answer": (
        {"question": "Where is Ana?", "passages": ["Ana is in Rome."], "n": 2, "stride": 2},
    ),
    "/v1/chat": ({"messages": [{"role": "user", "content": "a"}], "max_new_tokens": 4},),
    "/v1/chat/completions": (
        {"model": "example-chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    ),
    "/v1/completions": (
        {"model": "example-gpt", "prompt": "a small", "max_tokens": 4, "logprobs": 1, "n": 2},
        {"model": "example-gpt", "prompt": ["a", "b"], "max_tokens": 4, "stream": True},
    ),
    "/v1/embeddings": (
        {"model": "example-bert-embed", "input": ["a", "b"], "encoding_format": "base64"},
    ),
    "/hf/answer/example-bert-answer": (
        {"inputs": {"question": "Who?", "context": "Ana sang."}, "parameters": {"top_k": 2}},
    ),
    "/hf/translate/example-es-en": ({"inputs": "Hola.", "parameters": {}},),
    "/hf/generate/example-gpt": ({"inputs": "a", "parameters": {"max_new_tokens": 4}},),
    "/generate": ({"inputs": "a", "parameters": {"max_new_tokens": 4}},),
    "/generate_stream": ({"inputs": "a", "parameters": {"max_new_tokens": 4}},),
    "/embed": ({"inputs": ["a red circle"], "truncate": True, "truncation_direction": "Left"},),
    "/similarity": ({"inputs": {"source_sentence": "a", "sentences": ["b"]}},),
    "/rerank": ({"query": "a", "texts": ["b", "c"], "truncate": True},),
    "/predict": ({"inputs": "what a day"}, {"inputs": [["a"], ["b"]], "truncate": True}),
    "/hf/example-bert": ({"inputs": "a [MASK]."},),
    "/translate": ({"q": ["Hola.", "mundo"], "source": "es", "target": "en", "format": "html"},),
    GLOSSARY: (
        {"terms": {"mundo": "globe", "hola": "hi"}, "source": "es", "target": "en"},
        {"name": "kitchen", "terms": {"a b": "c"}},
    ),
    "/detect": ({"q": "El mundo no es suficiente."},),
}
"""Valid bodies, by path; the models are those that `make export` publishes."""

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**40, -0.0, 1e-320, 1e308, 0.5),
    *(float("nan"), float("inf"), "", " ", "\0", "\ud800", "\u202e", "😀" * 50, "a" * 5000),
    *("\r\n", "NaN", "[MASK]", "</s>", "<image>", "data:image/png;base64,", "####", "es", "__"),
    *([], {}, [[]], [None], [""], ["a"] * 40, {"a": {"a": {}}}, {"type": "text", "text": "a"}),
    base64.b64encode(_PNG_20000).decode(),
    base64.b64encode(PICTURE[:100]).decode(),
)

_METHODS = ("POST", "GET", "PUT", "HEAD")


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        route: The path without a query, as a valid request has it.
    """

    method: str
    path: str
    route: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def requests(seed: int) -> Iterator[Request]:
    """Without end; the same for the same seed."""
    number = 0
    while True:
        yield request(random.Random(f"{seed}/{number}"))
        number += 1


def request(rng: random.Random) -> Request:
    """One request: a valid body, changed in its values, its bytes or its envelope, or not."""
    route = rng.choice(list(BODIES))
    body = json.loads(json.dumps(rng.choice(BODIES[route])))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        body = _changed(body, rng)
    kind, content = _encoded(body, rng)
    for _ in range(rng.choices((0, 1, 4), (10, 1, 1))[0]):
        content = rng.choice(_NOISES)(content, rng)
    headers = {"content-type": kind, **_headers(rng)}
    methods = ("PUT", "GET", "DELETE", "POST") if route == GLOSSARY else _METHODS
    method = rng.choices(methods, (60, 1, 1, 1))[0]
    path = route
    if rng.random() < 0.02:
        path = rng.choice((route + "/", route + "%00", route.upper(), route + "?x=" + "%ff" * 9))
    return Request(method, path, route, content, headers)


def _changed(value: Any, rng: random.Random) -> Any:
    """The same with one value replaced, removed, repeated or added, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        action = rng.randrange(6)
        if action == 0:
            del value[name]
        elif action == 1:
            value[rng.choice(("x", "", name.upper(), "seed", "num_beams", "top_p"))] = _value(rng)
        elif action == 2:
            value[name] = _value(rng)
        else:
            value[name] = _changed(value[name], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value * rng.choice((2, 40))
        value[place] = _changed(value[place], rng)
        return value
    return _value(rng)


def _value(rng: random.Random) -> Any:
    if rng.random() < 0.05:
        deep: Any = 1
        for _ in range(rng.choice((5, 50, 200))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return json.loads(json.dumps(rng.choice(_VALUES)))


def _encoded(body: Any, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choices((JSON, MULTIPART, FORM), (14, 2, 1))[0]
    if kind == JSON or not isinstance(body, dict):
        return JSON, json.dumps(body).encode()
    texts = {name: str(value)[:2000] for name, value in body.items()}
    if kind == FORM:
        return kind, urlencode(texts, errors="replace").encode()
    return kind, _multipart(texts, rng)


def _multipart(texts: Mapping[str, str], rng: random.Random) -> bytes:
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode(
            "utf-8", "replace"
        )
        for name, text in texts.items()
        if name != "images"
    ]
    for _ in range(rng.choice((0, 1, 1, 2, 40))):
        picture = rng.choice((PICTURE, PICTURE[: rng.randrange(300)], _PNG_20000, b""))
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a.png"'
        parts.append(head.encode() + b"\r\n\r\n" + picture + b"\r\n")
    return b"".join([*parts, f"--{_BOUNDARY}--\r\n".encode()])


def _headers(rng: random.Random) -> dict[str, str]:
    chosen = rng.choices(
        (
            {},
            {"x-request-timeout": rng.choice(("0.001", "5", "x", "-1", "1e400"))},
            {"x-request-id": "x" * rng.choice((1, 200))},
            {"accept": "text/event-stream"},
            {"content-type": rng.choice(("text/plain", "application/json; charset=utf-16", "a"))},
            {"content-encoding": "gzip"},
            {"authorization": "Bearer \xff" * 3},
        ),
        (40, 2, 1, 1, 1, 1, 1),
    )[0]
    return dict(chosen)


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    pieces = (b"\0", b"\xff\xfe", b"{" * 50, b"[" * 3000, b"9" * 5000, b'"', b"\r\n\r\n", b",,")
    return content[:place] + rng.choice(pieces) + content[place:]


_NOISES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _insert)


METHODS: tuple[MethodDescriptor, ...] = tuple(pb.DESCRIPTOR.services_by_name["Triptych"].methods)
_MODELS = ("", "", "", "", "example-es-en", "example-gpt", "example-chat", "example-clip", "none")
_TEXTS = ("El mundo.", "a small red", "a [MASK].", "", "\0", "😀" * 20, "a" * 3000, "\u202e", "es")
_BYTES = (PICTURE, PICTURE[:99], b"", b"\xff" * 50)
_INTEGERS = (0, 1, 2, 3, 8, -1, 2**31 - 1, -(2**31))
_FLOATS = (0.0, 0.5, 1.0, -1.0, 1e308, float("nan"), float("inf"))
_DEPTH = 3


def call(rng: random.Random) -> tuple[MethodDescriptor, bytes]:
    """A method, and its serialized request."""
    method = rng.choice(METHODS)
    if rng.random() < 0.1:
        return method, rng.randbytes(rng.randrange(200))
    message = _message(method.input_type, rng, 0)
    content = message.SerializeToString()
    if rng.random() < 0.1 and content:
        place = rng.randrange(len(content))
        content = content[:place] + rng.randbytes(2) + content[place + 2 :]
    return method, content


def _message(kind: Descriptor, rng: random.Random, depth: int) -> Message:
    message = GetMessageClass(kind)()
    for each in kind.fields:
        if rng.random() < 0.85 and each.name not in ("texts", "prompts", "images", "labels"):
            continue
        if each.name == "max_new_tokens":
            message.max_new_tokens = rng.choice((1, 4, 8, 0, 10**6))
        elif each.is_repeated:
            _fill(message, each, rng, depth)
        elif each.type != FieldDescriptor.TYPE_MESSAGE:
            setattr(message, each.name, _scalar(each, rng))
        elif depth < _DEPTH:
            getattr(message, each.name).CopyFrom(_message(each.message_type, rng, depth + 1))
    return message


def _fill(message: Message, field: FieldDescriptor, rng: random.Random, depth: int) -> None:
    values = getattr(message, field.name)
    for _ in range(rng.choice((0, 1, 1, 2, 35))):
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            values.append(_scalar(field, rng))
        elif field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            if entry["value"].type != FieldDescriptor.TYPE_MESSAGE:
                values[_scalar(entry["key"], rng)] = _scalar(entry["value"], rng)
        elif depth < _DEPTH:
            values.append(_message(field.message_type, rng, depth + 1))


def _scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(_MODELS if field.name == "model" else _TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice(_BYTES)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.choice(_FLOATS) if field.type == FieldDescriptor.TYPE_DOUBLE else 0.5
    unsigned = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
    value = rng.choice(_INTEGERS)
    return abs(value) % 2**31 if field.type in unsigned else value


_LEAKS = re.compile(rb"Traceback|File \"/|site-packages|0x[0-9a-f]{8,}")
_ALWAYS = frozenset({400, 404, 405, 413, 422, 431})
"""Refusals of a path, method, header or body that is none of the document's."""
LONGEST_S = 30.0


def declared(document: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    """Statuses of each path that takes a body in an OpenAPI document; parameters as patterns."""
    return {
        path: frozenset(int(status) for one in methods.values() for status in one["responses"])
        for path, methods in document["paths"].items()
        if methods.keys() & {"post", "put"}
    }


def statuses_of(route: str, known: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """The declared statuses of a route, whose path may have parameters in the document."""
    for path, statuses in known.items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path), route):
            return statuses
    raise KeyError(route)


def problem(
    status: int, content_type: str, content: bytes, seconds: float, allowed: frozenset[int]
) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    if seconds > LONGEST_S:
        return f"took {seconds:.0f} s"
    if status >= 500 and status not in (503, 504):
        return f"status {status}"
    if status not in allowed | _ALWAYS:
        return f"undeclared status {status}"
    if shows_inside(content):
        return "the answer shows the program's inside"
    if status >= 400 and content and not _is_error(content):
        return f"status {status} without an error's body"
    if status < 300 and content_type.startswith("application/json"):
        try:
            json.loads(content, parse_constant=_refused)
        except ValueError as error:
            return f"not JSON: {error}"
    return None


def shows_inside(content: bytes) -> bool:
    """Whether a text has a path, an address or a stack trace of the program."""
    return _LEAKS.search(content) is not None


def growth(samples: Sequence[tuple[int, int]]) -> float:
    """Least-squares slope of the second half: bytes per thousand requests.

    Args:
        samples: (requests so far, bytes of resident memory).
    """
    kept = samples[len(samples) // 2 :]
    done = [requests for requests, _ in kept]
    if len(set(done)) < 3:
        return 0.0
    return 1000 * linear_regression(done, [size for _, size in kept]).slope


def _is_error(content: bytes) -> bool:
    try:
        body = json.loads(content)
    except ValueError:
        return False
    return isinstance(body, dict) and bool(body.get("error"))


def _refused(constant: str) -> None:
    raise ValueError(f"the constant {constant}")
