"""How many values a serialized protobuf message has, before it is parsed.

protobuf parses a whole message in one call, during which no other thread runs: millions of values
would hold up the event loop. Wire format: https://protobuf.dev/programming-guides/encoding

Decision D39.
"""

from __future__ import annotations

from typing import Any


def count_values(data: bytes, descriptor: Any, most: int) -> int:
    """The values of a message and of the messages in it; the count ends beyond `most`.

    In Python, so that other threads run meanwhile. Bytes that are no message end the count too:
    the parser refuses them. Messages of requests have no packed numbers.

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
