"""The text of `triptych.proto`, and the Python code that protoc makes of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from codegen.lock import Lock, LockedField
from codegen.schema import ProtoMessage, ProtoMethod

PROTO = "triptych/triptych.proto"
_EXPERIMENTAL = "\n\n # This class is part of an EXPERIMENTAL API."
HEADER = """\
Generated from the messages of `triptych/tasks` by `make proto`; do not edit. Field numbers and
types are locked in `proto.lock.json`.

Differences from JSON: images are the raw bytes of an image file where JSON has base64; a field
that is null in JSON is absent here; a list that is null in JSON is empty here.

Errors: the call ends with the status of the error and its message. Trailing metadata hold
`triptych-error-bin` (a serialized ErrorBody), `retry-after` (seconds, where a retry may succeed)
and `x-request-id`. Requests may carry the metadata `authorization: Bearer KEY` and `x-request-id`;
every response has `x-request-id` in its trailing metadata."""
_WIDTH = 100


def proto_text(messages: Iterable[ProtoMessage], methods: Iterable[ProtoMethod], lock: Lock) -> str:
    """The proto file; `lock` has the number of every field."""
    parts = ["\n".join(_comment(HEADER)), 'syntax = "proto3";', "package triptych.v1;"]
    parts.append("\n".join(_service(methods)))
    parts += ["\n".join(_message(message, lock[message.name])) for message in messages]
    return "\n\n".join(parts) + "\n"


def compile_proto(source: Path, output: Path) -> None:
    """Write `triptych_pb2.py`, `.pyi` and `triptych_pb2_grpc.py` below `output`.

    The last has stub and servicer, without a third class that repeats each method.

    Args:
        source: Folder that holds `triptych/triptych.proto`.
        output: Folder that gets the same sub-folder.

    Raises:
        RuntimeError: protoc refused the file.
    """
    outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *outputs, PROTO]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"protoc: {result.stderr.strip()}")
    stubs = output / PROTO.replace(".proto", "_pb2_grpc.py")
    stubs.write_text(stubs.read_text(encoding="utf-8").partition(_EXPERIMENTAL)[0], "utf-8")


def _service(methods: Iterable[ProtoMethod]) -> Iterator[str]:
    yield "service Triptych {"
    for method in methods:
        yield from _comment(method.comment, "  ")
        stream = "stream " if method.is_stream else ""
        yield f"  rpc {method.name}({method.request}) returns ({stream}{method.response});"
    yield "}"


def _message(message: ProtoMessage, locked: Mapping[str, LockedField]) -> Iterator[str]:
    yield from _comment(message.comment)
    if not locked:
        yield f"message {message.name} {{}}"
        return
    yield f"message {message.name} {{"
    yield from _reserved(locked)
    for field in sorted(message.fields, key=lambda field: locked[field.name].number):
        yield from _comment(field.comment, "  ")
        yield f"  {locked[field.name].type} {field.name} = {locked[field.name].number};"
    yield "}"


def _reserved(locked: Mapping[str, LockedField]) -> Iterator[str]:
    removed = {field.number: name for name, field in locked.items() if field.is_removed}
    if removed:
        yield f"  reserved {', '.join(str(number) for number in sorted(removed))};"
        names = ", ".join(f'"{name}"' for _, name in sorted(removed.items()))
        yield f"  reserved {names};"


def _comment(text: str, indent: str = "") -> Iterator[str]:
    prefix = f"{indent}// "
    for place, paragraph in enumerate(text.split("\n\n") if text else ()):
        if place:
            yield prefix.rstrip()
        yield from textwrap.wrap(
            " ".join(paragraph.split()),
            _WIDTH,
            initial_indent=prefix,
            subsequent_indent=prefix,
            break_on_hyphens=False,
        )
