"""Values of protobuf messages, counted before the messages are parsed."""

import random
from typing import Any

import pytest

from serving.gateway.dialects.bodies import MAX_VALUES
from serving.gateway.grpc_front import _METHODS
from serving.gateway.grpc_values import count_values
from tests.serving.gateway.conftest import MakeGateway
from tests.serving.gateway.test_grpc_front import Front, failure, raw_call
from triptych import triptych_pb2 as pb

CHAT = pb.ChatRequest(
    messages=[{"role": "user", "content": "a" * 300}, {"role": "assistant"}],
    temperature=0.5,
    max_new_tokens=300,
    logit_bias={3: -1.0, 400: 2.0},
    stop=["x", ""],
)
MESSAGES = [
    CHAT,
    pb.TranslateRequest(),
    pb.TranslateRequest(texts=["a", "", "b" * 200], glossary={"mundo": "globe", "": ""}),
    pb.CaptionRequest(images=[bytes(1000), b"\x0a" * 77], num_beams=3),
]


def count_parsed(message: Any) -> int:
    """The same count from the parsed message: an entry of a map is itself, a key and a value."""
    count = 0
    for field, value in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        values = value if field.is_repeated and not is_map else [value]
        if is_map:
            count += 3 * len(value)
        elif field.message_type is not None:
            count += sum(1 + count_parsed(one) for one in values)
        else:
            count += len(values)
    return count


@pytest.mark.parametrize("message", MESSAGES)
def test_values_are_those_of_the_parsed_message(message: Any) -> None:
    data = message.SerializeToString()
    assert count_values(data, message.DESCRIPTOR, 10**6) == count_parsed(message)


def test_count_ends_beyond_the_limit_and_at_what_is_no_message() -> None:
    data = pb.TranslateRequest(texts=["a"] * 1000).SerializeToString()
    assert count_values(data, pb.TranslateRequest.DESCRIPTOR, 10) == 11
    numbers = random.Random(3)
    for _ in range(2000):
        garbage = numbers.randbytes(numbers.randrange(40))
        assert 0 <= count_values(garbage, pb.ChatRequest.DESCRIPTOR, 100) <= len(garbage)


@pytest.mark.parametrize("method", ["Translate", "TranslateStream"])
@pytest.mark.parametrize(
    "data",
    [
        pb.TranslateRequest(texts=["a"] * (MAX_VALUES + 1)).SerializeToString(),
        b"\xa0\x06\x01" * (MAX_VALUES + 1),  # an unknown field
        b"\x0b" * (MAX_VALUES + 1),  # groups in groups
    ],
    ids=["texts", "unknown", "groups"],
)
async def test_messages_of_too_many_values_are_refused(
    make_gateway: MakeGateway, method: str, data: bytes
) -> None:
    async with Front(make_gateway(grpc_port=0)) as front:
        _, body, _ = await failure(raw_call(front, method, data))
        assert body.type == "payload_too_large"
        assert f"{MAX_VALUES} values" in body.message


def test_requests_have_no_packed_numbers() -> None:
    """The count takes a field of bytes for one value."""
    pending, seen = [method.input_type for method in _METHODS.values()], set()
    while pending:
        descriptor = pending.pop()
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            assert not field.is_packed, field.full_name
            if field.message_type is not None and field.message_type.full_name not in seen:
                pending.append(field.message_type)
    assert len(seen) > len(MESSAGES)
