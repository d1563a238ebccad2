"""Results on the terminal: items on stdout, errors of items on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from triptych.messages import Chunk, Item, ItemError

CUT = "the limit of tokens cut it"
"""Behind the name of an item with the finish reason `length`."""


def print_json(response: BaseModel) -> None:
    """The response as JSON without absent fields."""
    typer.echo(response.model_dump_json(indent=2, exclude_none=True))


def print_items(
    items: Sequence[Item],
    render: Callable[[Any, str | None], Iterable[str]],
    names: Sequence[str] | None = None,
) -> int:
    """The lines of each item, as `render(item, name)` makes them.

    Args:
        items: Results in the order of the inputs.
        render: Called for items without an error.
        names: Names of the inputs; rendered only where there are several.

    Returns:
        The exit code: 1 when an item failed.
    """
    for item in items:
        if item.error is None:
            for line in render(item, _name(names, item.index)):
                typer.echo(line)
    for item in items:
        report_cut(getattr(item, "finish_reason", None), item.index, names)
    report_truncated(items)
    return report_errors([(item.index, item.error) for item in items], names)


def print_stream(
    chunks: Iterable[Chunk], names: Sequence[str] | None = None, *, as_json: bool = False
) -> int:
    """Text as it arrives, one item after the other: that of later items is held back.

    Args:
        chunks: Of one stream.
        names: Names of the inputs; printed before the texts where there are several.
        as_json: Print each chunk as JSON instead, as it arrives.

    Returns:
        The exit code: 1 when an item failed.
    """
    errors: dict[int, ItemError | None] = {}
    reasons: dict[int, str | None] = {}
    lines = _Lines(names)
    try:
        for chunk in chunks:
            is_last = bool(chunk.error or chunk.finish_reason)
            if is_last:
                errors[chunk.index] = chunk.error
                reasons[chunk.index] = chunk.finish_reason
            if as_json:
                typer.echo(chunk.model_dump_json(exclude_none=True))
            else:
                lines.add(chunk.index, chunk.text, is_last=is_last, has_failed=bool(chunk.error))
    finally:
        lines.close()  # an error message starts on a new line
    for index, reason in sorted(reasons.items()):
        report_cut(reason, index, names)
    return report_errors(sorted(errors.items()), names)


class _Lines:
    """Texts of the items in order, each on its own line, as early as the order allows."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = names
        self._texts: dict[int, str] = {}
        self._has_failed: dict[int, bool] = {}
        self._next = 0
        self._is_open = False

    def add(self, index: int, text: str, *, is_last: bool, has_failed: bool) -> None:
        """Further text of an item; an item that fails without text gets no line."""
        self._texts[index] = self._texts.get(index, "") + text
        if is_last:
            self._has_failed[index] = has_failed
        while self._next in self._texts:
            is_complete = not self._has_failed.get(self._next, True)
            self._print(self._texts.pop(self._next), is_complete=is_complete)
            if self._next not in self._has_failed:
                return
            self.close()
            self._next += 1

    def close(self) -> None:
        """End the line, if one has begun."""
        if self._is_open:
            typer.echo()
        self._is_open = False

    def _print(self, text: str, *, is_complete: bool) -> None:
        if not (text or is_complete):
            return
        name = _name(self._names, self._next)
        if not self._is_open and name is not None:
            text = f"{name}\t{text}"
        typer.echo(text, nl=False)  # flushes
        self._is_open = True


def report_cut(reason: str | None, index: int, names: Sequence[str] | None = None) -> None:
    """A line on stderr for an item that the limit of tokens cut."""
    if reason == "length":
        typer.echo(f"triptych: {_label(names, index)}: {CUT}", err=True)


def report_errors(
    errors: Sequence[tuple[int, ItemError | None]], names: Sequence[str] | None = None
) -> int:
    """A line on stderr for each item that failed.

    Returns:
        The exit code: 1 when an item failed.
    """
    failed = [(index, error) for index, error in errors if error is not None]
    for index, error in failed:
        typer.echo(f"triptych: {_label(names, index)}: {error.message}", err=True)
    return 1 if failed else 0


def report_truncated(items: Sequence[Item]) -> None:
    """A line on stderr for each item whose text was cut."""
    for item in items:
        results = (item, *(getattr(item, "results", None) or ()))
        cut = sum(getattr(one, "truncated_characters", None) or 0 for one in results)
        if cut:
            typer.echo(f"triptych: item {item.index + 1}: {cut} characters were cut off", err=True)


def _label(names: Sequence[str] | None, index: int) -> str:
    return names[index] if names else f"item {index + 1}"


def _name(names: Sequence[str] | None, index: int) -> str | None:
    """The name of an input among several; None for a single one."""
    return names[index] if names and len(names) > 1 else None
