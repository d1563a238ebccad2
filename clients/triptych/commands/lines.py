"""A text file processed line by line, so that an interruption costs at most one batch.

The output holds whole lines only, each with its line break, in the order of the input. So its
length says where to continue; a last line without line break was cut off and is made again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from triptych.errors import InvalidArgument, TriptychError
from triptych.messages import Item, Response
from triptych.task import item_json, item_line


@dataclass
class LineProcessor:
    """How input lines become output lines.

    Attributes:
        send: Sends one batch of lines.
        batch_size: Lines per batch, including blank ones, which are not sent.
        keep_going: Whether a line that fails becomes a blank one instead of ending the run.
        as_json: Whether an output line is the whole item as JSON instead of its text.
        failed: Number (from 1) and message of each line that failed.
        cut: Number of each line whose result the limit of tokens cut.
    """

    send: Callable[[list[str]], Response[Any]]
    batch_size: int
    keep_going: bool = False
    as_json: bool = False
    failed: list[tuple[int, str]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)

    def batches(self, lines: Iterator[str], done: int) -> Iterator[list[str]]:
        """Output lines, batch by batch, for the input after its first `done` lines.

        Raises:
            TriptychError: The batch, or one of its lines, failed.
        """
        write = item_json if self.as_json else item_line
        number = done
        while batch := list(islice(lines, self.batch_size)):
            items = self._items(batch, number + 1, " (--keep-going leaves it blank)")
            yield [write(item) if item is not None else "" for item in items]
            number += len(batch)

    def items(self, source: Path | None) -> list[Item]:
        """The result of each line of `source` (None: stdin).

        Raises:
            TriptychError: A line is blank or failed.
        """
        found: list[Item] = []
        with ExitStack() as files:
            lines = _lines(files.enter_context(source.open("rb")) if source else sys.stdin.buffer)
            number = 0
            while batch := list(islice(lines, self.batch_size)):
                for item in self._items(batch, number + 1, ""):
                    number += 1
                    if item is None:
                        raise InvalidArgument(
                            f"line {number} of the input is blank, and this format has no place "
                            "for it: remove the line"
                        )
                    found.append(item)
        return found

    def _items(self, batch: list[str], first: int, hint: str) -> list[Item | None]:
        """The result of each line; None for a blank line and for one that failed.

        Args:
            batch: Lines.
            first: Number of the first one, from 1.
            hint: End of the message if a line fails.

        Raises:
            TriptychError: The batch failed, or, without `keep_going`, one of its lines.
        """
        items: list[Item | None] = [None] * len(batch)
        places = [place for place, line in enumerate(batch) if line.strip()]
        if not places:
            return items
        response = self.send([batch[place] for place in places])
        for place, item in zip(places, response.data, strict=True):
            if item.error is None:
                items[place] = item
                if getattr(item, "finish_reason", None) == "length":
                    self.cut.append(first + place)
            elif self.keep_going:
                self.failed.append((first + place, item.error.message))
            else:
                raise TriptychError(f"line {first + place}: {item.error.message}{hint}")
        return items


def process_file(processor: LineProcessor, source: Path | None, target: Path | None) -> None:
    """Process the lines of `source` (None: stdin) that `target` (None: stdout) lacks.

    Raises:
        TriptychError: `target` does not fit `source`, or processing failed; finished batches are
            kept.
    """
    if source and target and target.exists() and source.samefile(target):
        raise InvalidArgument(f"{target} is both input and output")
    with ExitStack() as files:
        lines = _lines(files.enter_context(source.open("rb")) if source else sys.stdin.buffer)
        if target is None:
            output, done, rest = sys.stdout.buffer, 0, lines
        else:
            output = files.enter_context(target.open("a+b"))
            done, rest = _resume(output, lines, target)
        advance = files.enter_context(_progress(source, done, visible=target is not None))
        for batch in processor.batches(rest, done):
            _append(output, batch)
            advance(len(batch))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines as `wc` counts them; other line breaks of Unicode belong to the text."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InvalidArgument(f"line {number} of the input is not UTF-8 text") from None


def _resume(output: BinaryIO, lines: Iterator[str], path: Path) -> tuple[int, Iterator[str]]:
    """Compare the output with the input, and remove a cut-off last line from it.

    Nothing is removed before the whole output was found to fit: at most as many lines as the
    input, and blank lines where the input has them.

    Returns:
        Number of lines in the output, and the input lines after those.
    """
    done = size = 0
    rest = lines
    output.seek(0)
    for line in output:
        original = next(lines, None)
        if original is None:
            raise _misfit(path, f"it has more lines than the input's {done}")
        if not line.endswith(b"\n"):
            rest = chain([original], lines)
            break
        if not original.strip() and line.strip():
            raise _misfit(path, f"line {done + 1} is blank in the input")
        done += 1
        size += len(line)
    output.truncate(size)
    output.seek(0, os.SEEK_END)
    return done, rest


def _misfit(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} does not belong to this input and was not changed: {reason}; "
        "choose another --output or remove it"
    )


def _append(output: BinaryIO, batch: list[str]) -> None:
    """Write whole lines, and flush them to the disk before the next batch is sent."""
    output.write("".join(f"{line}\n" for line in batch).encode("utf-8"))
    output.flush()
    if output is not sys.stdout.buffer:
        os.fsync(output.fileno())


@contextmanager
def _progress(source: Path | None, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; yields the function to call after each batch."""
    if not (visible and sys.stderr.isatty()):
        yield lambda lines: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "lines", TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=_count_lines(source) if source else None, completed=done)
        yield lambda lines: bar.advance(task, lines)


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
