"""The clients' methods: one for each task, one more where it streams, with types and docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator

from triptych.fields import MessageField, fields_of
from triptych.task import IMAGES, Task

HEADER = '''"""Methods of the clients, generated from the tasks by `make proto`; do not edit."""'''
IMPORTS = """\
from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from triptych.client.base_client import AwaitableClient, BlockingClient, awaiting, streaming
from triptych.images import Image
from triptych.messages import Chunk
from triptych.operation import fields_among, operation, stream_operation
"""
IMAGES_TEXT = "One or many: paths, bytes, open files, Pillow images, data URIs or base64."
STREAM_TEXT = """\
Chunks of several items are interleaved; each has the `index` of its item. Nothing is sent before
the first chunk is read. Beams cannot stream."""
CLASS_TEXT = "A method for each task of the API."
RAISES = "TriptychError: See `triptych.errors`"
_ARGUMENTS = "**fields_among(locals())"
_WIDTH = 100 - 8


def methods_text(tasks: Iterable[Task]) -> str:
    """The module `triptych.generated.methods`; not formatted yet."""
    tasks = list(tasks)
    return "\n".join(
        [HEADER, "", IMPORTS, *map(_import, tasks), *_blocking(tasks), *_awaitable(tasks)]
    )


def _import(task: Task) -> str:
    module, response = task.request.__module__, task.response.__name__
    return f"from {module} import TASK as {_constant(task)}, {response}"


def _blocking(tasks: Iterable[Task]) -> Iterator[str]:
    yield "class BlockingMethods(BlockingClient):"
    yield f'    """{CLASS_TEXT}"""'
    for task in tasks:
        yield from ("", *_method(task))
        if task.streams:
            yield from ("", *_stream_method(task))


def _awaitable(tasks: Iterable[Task]) -> Iterator[str]:
    yield "class AwaitableMethods(AwaitableClient):"
    yield f'    """{CLASS_TEXT}"""'
    yield ""
    for task in tasks:
        yield f"    {task.method} = awaiting(BlockingMethods.{task.method})"
        if task.streams:
            name = f"{task.method}_stream"
            yield f"    {name} = streaming(BlockingMethods.{name})"


def _method(task: Task) -> Iterator[str]:
    fields = [field for field in parameters(task) if field.name != "stream"]
    response, first = task.response.__name__, task.item_fields[0]
    yield f"    def {task.method}({_signature(task, fields)}) -> {response}:"
    yield from _docstring(
        [task.summary, *_details(task)],
        fields,
        f"`data` of the response has one item per entry of `{first}`, in their order.",
        f"{RAISES}.",
    )
    yield f"        return self.send(operation({_constant(task)}, {response}, {_ARGUMENTS}))"


def _stream_method(task: Task) -> Iterator[str]:
    excluded = {"stream", *task.not_streamed}
    fields = [field for field in parameters(task) if field.name not in excluded]
    signature = _signature(task, fields)
    yield f"    def {task.method}_stream({signature}) -> Generator[Chunk, None, None]:"
    yield from _docstring(
        [f"As `{task.method}`, in chunks of text while it is generated.", STREAM_TEXT],
        fields,
        "A generator of chunks; closing it aborts the request.",
        f"{RAISES}; nothing is retried after the first chunk.",
    )
    yield f"        return self.stream(stream_operation({_constant(task)}, {_ARGUMENTS}))"


def parameters(task: Task) -> list[MessageField]:
    """The request's fields as parameters: positional and required ones first, `model` last."""

    def place(field: MessageField) -> tuple[bool, bool, bool]:
        return not _is_positional(task, field), not field.is_required, field.name == "model"

    return sorted(fields_of(task.request).values(), key=place)


def _is_positional(task: Task, field: MessageField) -> bool:
    """The first input is positional; so are required fields, where they may follow it.

    A field that was required once stays so (`Task.positional`).
    """
    first = task.item_fields[0]
    if field.name == first or field.name in task.positional:
        return True
    return field.is_required and fields_of(task.request)[first].is_required


def _signature(task: Task, fields: Iterable[MessageField]) -> str:
    positional = [_parameter(field) for field in fields if _is_positional(task, field)]
    named = [_parameter(field) for field in fields if not _is_positional(task, field)]
    # The trailing comma makes the formatter put one parameter on each line.
    return ", ".join(["self", *positional, *(["*", *named] if named else [])]) + ","


def _parameter(field: MessageField) -> str:
    default = "" if field.is_required else f" = {field.default!r}"
    return f"{field.name}: {annotation(field)}{default}"


def annotation(field: MessageField) -> str:
    """The type of a parameter: any iterable for a list, one or many texts or images."""
    name = "Image" if field.name == IMAGES else field.type.__name__
    if field.is_message:
        parts = ", ".join(annotation(part) for part in fields_of(field.type).values())
        name = f"tuple[{parts}]"
        if field.has_text_form:
            name = f"str | Mapping[str, str] | {name}"
    types = {
        "one": name,
        "list": f"Iterable[{name}]",
        "rows": f"Iterable[Iterable[{name}]]",
        "map": f"Mapping[{getattr(field.key, '__name__', '')}, {name}]",
    }
    if field.shape == "list" and (name in ("str", "Image") or field.has_text_form):
        one = "str" if field.has_text_form else name
        types["list"] = f"{one} | {types['list']}"
    return types[field.shape] + (" | None" if field.is_optional else "")


def _docstring(
    paragraphs: Iterable[str], fields: Iterable[MessageField], returns: str, raises: str
) -> Iterator[str]:
    first, *others = paragraphs
    yield f'        """{first}'
    for paragraph in others:
        yield ""
        yield from _wrap(paragraph, "")
    for title, entries in (
        ("Args", [f"{field.name}: {description(field)}" for field in fields]),
        ("Returns", [returns]),
        ("Raises", [raises]),
    ):
        yield ""
        yield f"        {title}:"
        for entry in entries:
            yield from _wrap(entry, "    ")
    yield '        """'


def description(field: MessageField) -> str:
    """What a parameter means, in the words of the message's field."""
    if field.name == IMAGES:
        return IMAGES_TEXT
    if field.is_message and field.shape == "list":
        form = f"({', '.join(field.type.model_fields)})"
        text = ", a mapping of these, or a text" if field.has_text_form else ""
        return f"{field.description} Each is {form}{text}."
    return field.description


def _details(task: Task) -> Iterator[str]:
    """Paragraphs of the request's docstring after its first."""
    text = inspect.cleandoc(task.request.__doc__ or "")
    for paragraph in text.split("\n\n")[1:]:
        yield " ".join(paragraph.split())


def _wrap(text: str, indent: str) -> list[str]:
    margin = "        " + indent
    following = margin + ("    " if indent else "")
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH + 8,
        initial_indent=margin,
        subsequent_indent=following,
        break_on_hyphens=False,
    )


def _constant(task: Task) -> str:
    return task.method.upper()
