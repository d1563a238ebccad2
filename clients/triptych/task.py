"""Declaration of a task: the single source of everything that clients and gateway derive from it.

A task is one file in `triptych/tasks` with its messages and `TASK = Task(...)`, and one file in
`inference/tasks`. Route, OpenAPI, gRPC method, proto messages, client methods and command follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from triptych.messages import Item, Request, Response, StreamRequest


def text_lines(item: Item, name: str | None) -> Iterator[str]:
    """The text of an item, and its alternatives below it; an item without text as JSON.

    Args:
        item: Result without an error.
        name: Written before the text, e.g. a file name; None where there is a single input.
    """
    prefix = f"{name}\t" if name else ""
    text = getattr(item, "text", None)
    yield f"{prefix}{item_json(item) if text is None else text}"
    for alternative in getattr(item, "alternatives", None) or ():
        score = "" if alternative.score is None else f"{alternative.score:8.4f}"
        yield f"  {score:>8}  {alternative.text}"


def separator(item: Item, name: str | None) -> Iterator[str]:
    """What stands above an item of several lines: its name, else a blank line between items."""
    if name is not None:
        yield name
    elif item.index:
        yield ""


def item_line(item: Item) -> str:
    """An item on one line: its text without line breaks, or JSON where it has none."""
    text = getattr(item, "text", None)
    return item_json(item) if text is None else " ".join(text.splitlines())


def item_json(item: Item) -> str:
    """An item as JSON on one line, without its position."""
    return item.model_dump_json(exclude_none=True, exclude={"index"})


Render: TypeAlias = Callable[..., Iterable[str]]
"""`render(item, name, **options)`: lines of a result. Parameters after the first two become flags
of the command, described by `Annotated[..., Field(description=...)]`."""

Format: TypeAlias = Callable[[Sequence[Any], Sequence[bytes | Path]], bytes]
"""Content of a file that holds these results, given the request's images; none with texts."""


@dataclass(frozen=True)
class Command:
    """What the command line cannot derive from the request.

    Attributes:
        examples: Command lines for `--help`.
        short: Field → letter of its short flag.
        render: Lines printed for a result; its text by default.
        formats: Suffix of `--output`, e.g. `.npy`, → what is written to such a file.
    """

    examples: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)
    render: Render = text_lines
    formats: Mapping[str, Format] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One task of the API.

    Attributes:
        name: Route below `/v1`, command, and label, e.g. `zero-shot`.
        summary: One sentence for OpenAPI, `--help` and the clients' docstrings.
        request: Message of the request; its fields are the parameters everywhere.
        response: Message of the response.
        inputs: Field of the request that holds one entry per item; several where exactly one of
            them must be given.
        together: Those of `inputs` that may be given together, as one item of both.
        positional: Optional fields that clients take by position too, behind `inputs`: they were
            required once.
        documents: Fields whose texts may be documents (`triptych/documents.py`), which a gateway
            reads.
        not_streamed: Fields that a stream excludes.
        command: How its command looks and how results are printed.
        sample: Fields of an example request, as the load generator sends it; the strings
            `{sentence}` and `{image}` stand for material of the example world.
    """

    name: str
    summary: str
    request: type[Request]
    response: type[Response[Any]]
    inputs: str | tuple[str, ...]
    together: tuple[str, ...] = field(default=(), kw_only=True)
    positional: tuple[str, ...] = field(default=())
    documents: tuple[str, ...] = field(default=())
    not_streamed: tuple[str, ...] = field(default=())
    command: Command = field(default=Command())
    sample: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def item_fields(self) -> tuple[str, ...]:
        """The fields of `inputs`."""
        return (self.inputs,) if isinstance(self.inputs, str) else self.inputs

    @cached_property
    def path(self) -> str:
        """HTTP path."""
        return f"/v1/{self.name}"

    @cached_property
    def verb(self) -> str:
        """GRPC method, e.g. `ZeroShot`; its stream is `ZeroShotStream`."""
        return "".join(word.capitalize() for word in self.name.split("-"))

    @cached_property
    def method(self) -> str:
        """Method of the clients, e.g. `zero_shot`."""
        return self.name.replace("-", "_")

    @cached_property
    def streams(self) -> bool:
        """Whether the response may be streamed."""
        return issubclass(self.request, StreamRequest)

    @cached_property
    def takes_images(self) -> bool:
        """Whether the request has a field `images`."""
        return IMAGES in self.request.model_fields


IMAGES = "images"
"""The one field that holds images: base64 in JSON, files in multipart, bytes over gRPC."""
FRAME_COUNTS = "frame_counts"
"""The field that makes items of several images each."""
