"""Answers on the terminal: results on stdout, an item's error on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from triptych.messages import Chunk, ItemError
    from triptych.tasks.caption import Caption
    from triptych.tasks.generate import Generation
    from triptych.tasks.translate import Translation


def print_json(answer: BaseModel) -> None:
    """The answer as JSON, absent fields left out."""
    typer.echo(answer.model_dump_json(indent=2, exclude_none=True))


def print_texts(
    items: Sequence[Translation | Caption | Generation], names: Sequence[str] | None = None
) -> int:
    """One text a line, `name<TAB>` before it where there are names, alternatives below it.

    Returns:
        The exit code: 1 when an item failed.
    """
    for item in items:
        name = f"{names[item.index]}\t" if names else ""
        if item.error is None:
            typer.echo(f"{name}{item.text}")
        for alternative in item.alternatives or ():
            score = "" if alternative.score is None else f"{alternative.score:8.4f}"
            typer.echo(f"  {score:>8}  {alternative.text}")
    return report_errors([(item.index, item.error) for item in items], names)


def print_stream(
    pieces: Iterable[Chunk], names: Sequence[str] | None = None, *, as_json: bool = False
) -> int:
    """Text as it comes, one item after the other: of later ones what has come is held back.

    Args:
        pieces: Of one stream.
        names: Of the items, printed before their texts where there are any.
        as_json: Print every piece as the server sent it instead, as it comes.

    Returns:
        The exit code: 1 when an item failed.
    """
    errors: dict[int, ItemError | None] = {}
    lines = _Lines(names)
    try:
        for piece in pieces:
            is_end = bool(piece.error or piece.finish_reason)
            if is_end:
                errors[piece.index] = piece.error
            if as_json:
                typer.echo(piece.model_dump_json(exclude_none=True))
            else:
                lines.add(piece.index, piece.text, is_end=is_end, is_good=piece.error is None)
    finally:
        lines.close()  # what is said of a failure begins a line
    return report_errors(sorted(errors.items()), names)


class _Lines:
    """Items' texts in order, each on a line of its own, as early as that allows."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = names
        self._texts: dict[int, str] = {}
        self._ends: dict[int, bool] = {}
        self._turn = 0
        self._is_begun = False

    def add(self, index: int, text: str, *, is_end: bool, is_good: bool) -> None:
        """More of an item; a line that ends in an error is not printed for its own sake."""
        self._texts[index] = self._texts.get(index, "") + text
        if is_end:
            self._ends[index] = is_good
        while self._turn in self._texts:
            self._print(self._texts.pop(self._turn), is_whole=self._ends.get(self._turn, False))
            if self._turn not in self._ends:
                return
            self.close()
            self._turn += 1

    def close(self) -> None:
        """End the line, if it has begun."""
        if self._is_begun:
            typer.echo()
        self._is_begun = False

    def _print(self, text: str, *, is_whole: bool) -> None:
        if not (text or is_whole):
            return
        if not self._is_begun and self._names:
            text = f"{self._names[self._turn]}\t{text}"
        typer.echo(text, nl=False)  # flushes
        self._is_begun = True


def report_errors(
    errors: Sequence[tuple[int, ItemError | None]], names: Sequence[str] | None = None
) -> int:
    """A line on stderr for each item that failed.

    Returns:
        The exit code: 1 when an item failed.
    """
    failed = [(index, error) for index, error in errors if error is not None]
    for index, error in failed:
        name = names[index] if names else f"item {index + 1}"
        typer.echo(f"triptych: {name}: {error.message}", err=True)
    return 1 if failed else 0
