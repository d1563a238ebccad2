"""A file translated line by line, so that an interruption costs at most one batch.

The output holds whole lines only, each with its line break, in the order of the input; so its
length says where to go on, and a torn last line is a crash's and is translated again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from triptych.errors import InvalidArgument, TriptychError
from triptych.tasks.translate import TranslateResponse, Translation


@dataclass
class LineTranslation:
    """How lines become lines.

    Attributes:
        ask: Sends one batch.
        batch_size: Lines a batch, blank ones included, which are not sent.
        keep_going: Whether a line that fails becomes a blank one, instead of the end.
        as_json: Whether an output line is the answer's item, instead of its text.
        failed: Number (from 1) and message of each line that failed.
    """

    ask: Callable[[list[str]], TranslateResponse]
    batch_size: int
    keep_going: bool = False
    as_json: bool = False
    failed: list[tuple[int, str]] = field(default_factory=list)

    def batches(self, lines: Iterator[str], done: int) -> Iterator[list[str]]:
        """Output lines, batch by batch, of what follows the `done` first input lines.

        Raises:
            TriptychError: The batch, or a line of it, was refused.
        """
        number = done
        while batch := list(islice(lines, self.batch_size)):
            yield self._translated(batch, number + 1)
            number += len(batch)

    def _translated(self, batch: list[str], first: int) -> list[str]:
        output = [""] * len(batch)
        places = [place for place, line in enumerate(batch) if line.strip()]
        if not places:
            return output
        answer = self.ask([batch[place] for place in places])
        for place, item in zip(places, answer.data, strict=True):
            if item.error is None:
                output[place] = self._line(item)
            elif self.keep_going:
                self.failed.append((first + place, item.error.message))
            else:
                raise TriptychError(
                    f"line {first + place}: {item.error.message} (--keep-going leaves it blank)"
                )
        return output

    def _line(self, item: Translation) -> str:
        if self.as_json:
            return item.model_dump_json(exclude_none=True, exclude={"index"})
        return " ".join((item.text or "").splitlines())


def translated_file(translation: LineTranslation, source: Path | None, target: Path | None) -> None:
    """Translate the lines of `source` (None: stdin) that `target` (None: stdout) lacks.

    Raises:
        TriptychError: `target` is not the beginning of a translation of `source`, or what the
            translation raises; batches before it are kept.
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
        for batch in translation.batches(rest, done):
            _append(output, batch)
            advance(len(batch))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines as `wc` counts them: other characters that Unicode breaks lines at are text."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InvalidArgument(f"line {number} of the input is not UTF-8 text") from None


def _resume(output: BinaryIO, lines: Iterator[str], path: Path) -> tuple[int, Iterator[str]]:
    """Set input lines against what the output holds, and cut a torn last line off it.

    Nothing is cut before all of the output was found to fit: as many lines at most, and blank
    where the input is.

    Returns:
        How many lines the output holds, and the input lines after those.
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
        f"{path} is no translation of this input, so it is left as it is: {reason}; "
        "choose another --output or remove it"
    )


def _append(output: BinaryIO, batch: list[str]) -> None:
    """Write whole lines and see them to the disk before the next batch is asked for."""
    output.write("".join(f"{line}\n" for line in batch).encode("utf-8"))
    output.flush()
    if output is not sys.stdout.buffer:
        os.fsync(output.fileno())


@contextmanager
def _progress(source: Path | None, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; yields what to call after each batch."""
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
