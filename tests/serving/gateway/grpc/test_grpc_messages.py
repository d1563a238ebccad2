"""Values of protobuf messages, counted before the messages are parsed."""

import random
import threading
from typing import Any

import pytest

from serving.gateway.grpc import grpc_messages
from serving.gateway.grpc.grpc_messages import count_values
from serving.gateway.http.bodies import MAX_VALUES
from tests.serving.gateway.conftest import MakeGateway
from tests.serving.gateway.grpc.test_grpc_front import Front, failure, raw_call
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


SERVICE = pb.DESCRIPTOR.services_by_name["Triptych"]


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


def test_fields_of_a_group_are_not_taken_for_those_of_the_message() -> None:
    """Else this entry of `glossary` would hide what follows: in it, a length of 268 million."""
    glossary = pb.TranslateRequest.DESCRIPTOR.fields_by_name["glossary"].number
    hidden = bytes([glossary << 3 | 2, 5]) + b"\x0a\xff\xff\xff\x7f"
    group = b"\xa3\x06" + hidden + b"\xa4\x06"
    texts = pb.TranslateRequest(texts=["a"] * 1000)
    data = group + texts.SerializeToString()
    assert len(pb.TranslateRequest.FromString(data).texts) == 1000
    assert count_values(data, pb.TranslateRequest.DESCRIPTOR, 10**6) == 1003


def test_count_ends_beyond_the_limit_and_at_what_is_no_message() -> None:
    data = pb.TranslateRequest(texts=["a"] * 1000).SerializeToString()
    assert count_values(data, pb.TranslateRequest.DESCRIPTOR, 10) == 11
    numbers = random.Random(3)
    for _ in range(2000):
        garbage = numbers.randbytes(numbers.randrange(40))
        assert 0 <= count_values(garbage, pb.ChatRequest.DESCRIPTOR, 100) <= len(garbage)


@pytest.mark.parametrize("method", ["Translate", "TranslateStream", "ListModels", "PutGlossary"])
@pytest.mark.parametrize(
    "data",
    [
        b"\x1a\x00" * (MAX_VALUES + 1),  # a text
        b"\xa0\x06\x01" * (MAX_VALUES + 1),  # an unknown field
        b"\x0b" * (MAX_VALUES + 1),  # groups in groups
    ],
    ids=["text", "unknown", "groups"],
)
async def test_messages_of_too_many_values_are_refused_off_the_event_loop(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch, method: str, data: bytes
) -> None:
    counting = []

    def count(*given: Any) -> int:
        counting.append(threading.current_thread())
        return count_values(*given)

    monkeypatch.setattr(grpc_messages, "count_values", count)
    async with Front(make_gateway(grpc_port=0)) as front:
        _, body, _ = await failure(raw_call(front, method, data))
        assert body.type == "payload_too_large"
        assert f"{MAX_VALUES} values" in body.message
    assert counting
    assert threading.current_thread() not in counting


def test_requests_have_no_packed_numbers() -> None:
    """The count takes a field of bytes for one value."""
    pending, seen = [method.input_type for method in SERVICE.methods], set()
    while pending:
        descriptor = pending.pop()
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            assert not field.is_packed, field.full_name
            if field.message_type is not None and field.message_type.full_name not in seen:
                pending.append(field.message_type)
    assert len(seen) > len(MESSAGES)
