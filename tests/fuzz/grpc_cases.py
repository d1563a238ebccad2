"""gRPC calls with random messages of `triptych.v1`, or random bytes."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.http_cases import PICTURE
from triptych import triptych_pb2 as pb

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
    for field in kind.fields:
        if rng.random() < 0.85 and field.name not in ("texts", "prompts", "images", "labels"):
            continue
        if field.name == "max_new_tokens":
            message.max_new_tokens = rng.choice((1, 4, 8, 0, 10**6))
        elif field.is_repeated:
            _fill(message, field, rng, depth)
        elif field.type != FieldDescriptor.TYPE_MESSAGE:
            setattr(message, field.name, _scalar(field, rng))
        elif depth < _DEPTH:
            getattr(message, field.name).CopyFrom(_message(field.message_type, rng, depth + 1))
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
