"""Serialized messages of calls: counted before they are parsed, parsed, and as requests of tasks.

protobuf parses a whole message in one call, during which no other thread runs: millions of values
would hold up the event loop, and pydantic reports each wrong one at about a kilobyte.
Wire format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel, ValidationError

from inference.errors import MalformedBody, PayloadTooLarge
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.grpc.grpc_call import route_of
from serving.gateway.http.bodies import MAX_VALUES
from serving.gateway.requests.service import TaskRequest, from_validation
from triptych import triptych_pb2 as pb
from triptych.client.conversion import from_proto
from triptych.task import IMAGES

METHODS = pb.DESCRIPTOR.services_by_name["Triptych"].methods_by_name


def count_values(data: bytes, descriptor: Any, most: int) -> int:
    """The values of a message and of the messages in it; the count ends beyond `most`.

    In Python, so that other threads run meanwhile. Bytes that are no message end the count too:
    the parser refuses them. Packed numbers count as one a byte, which is the most they can be.

    Args:
        most: Where the count may end.
    """
    count, position = 0, 0
    messages = [(len(data), descriptor)]  # where each open message ends, and its type, if known
    try:
        while position < len(data) and count <= most:
            while position >= messages[-1][0]:
                messages.pop()
            key, position = _read_varint(data, position)
            count += 1
            match key & 7:
                case 0:
                    _, position = _read_varint(data, position)
                case 1:
                    position += 8
                case 2:
                    length, position = _read_varint(data, position)
                    of = messages[-1][1]
                    field = of and of.fields_by_number.get(key >> 3)
                    if field and field.message_type:
                        messages.append((position + length, field.message_type))
                    else:
                        position += length
                        count += length if field and field.is_packed else 0
                case 3:  # a group, which none of our messages has
                    messages.append((messages[-1][0], None))
                case 4:
                    messages.pop()
                case 5:
                    position += 4
                case 6 | 7:
                    break
    except IndexError:  # cut off
        pass
    return count


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends.

    Raises:
        IndexError: it does not end.
    """
    number = 0
    for index in range(10):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, position + index + 1
    raise IndexError(position)


def encoder_of(method: str) -> Callable[[Any], bytes]:
    """What serializes the responses of a method."""
    response: Any = GetMessageClass(METHODS[method].output_type)
    encoder: Callable[[Any], bytes] = response.SerializeToString
    return encoder


def decode(data: bytes, method: str) -> Any:
    """The protobuf message of a request.

    Decoded by the call itself, after authorisation: gRPC would answer what it cannot decode with
    UNKNOWN, and log a stack trace.

    Raises:
        PayloadTooLarge: it has more than `MAX_VALUES` values.
        MalformedBody: not such a message.
    """
    descriptor = METHODS[method].input_type
    if len(data) > MAX_VALUES and count_values(data, descriptor, MAX_VALUES) > MAX_VALUES:
        raise PayloadTooLarge(
            f"the message has more than {MAX_VALUES} values: send several requests"
        )
    message = GetMessageClass(descriptor)
    try:
        return message.FromString(data)
    except DecodeError:
        raise MalformedBody(f"the request is not a {descriptor.full_name} message") from None


def read(data: bytes, method: str, message: type[BaseModel]) -> BaseModel:
    """A serialized message.

    Raises:
        InvalidRequest: not such a message, or a field is not valid.
    """
    try:
        return from_proto(decode(data, method), message)
    except ValidationError as error:
        raise from_validation(error) from None


def task_request(data: bytes, task: AnyTask, method: str, stream: bool | None) -> TaskRequest:
    """The task request of a serialized message; `stream` replaces its own field, if given.

    Raises:
        InvalidRequest: not such a message, or a field is not valid.
    """
    request = decode(data, method)
    if stream is not None:
        request.stream = stream
    images = _take_images(request) if task.declaration.takes_images else ()
    try:
        message = from_proto(request, task.declaration.request)
    except ValidationError as error:  # converted here: a long list may have many
        raise from_validation(error) from None
    return TaskRequest(task, message, route_of(method), images)


def _take_images(request: Any) -> list[ImageInput]:
    """The request's images as bytes; empty placeholders remain, which are cheap to convert."""
    images: list[ImageInput] = list(getattr(request, IMAGES))
    field = getattr(request, IMAGES)
    del field[:]
    field.extend(b"" for _ in images)
    return images
