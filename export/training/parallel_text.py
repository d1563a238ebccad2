"""A user's parallel text: two files of lines, line by line each other's translation."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

from inference.errors import SetupError

LEAST_PAIRS = 20


@dataclass(frozen=True)
class ParallelText:
    """Pairs of lines.

    Attributes:
        skipped: Number of pairs with an empty side, which are left out.
        fingerprint: Of both sides, all lines.
    """

    sources: list[str]
    targets: list[str]
    skipped: int
    fingerprint: str

    def split(self, held_out: int, seed: int) -> tuple[ParallelText, ParallelText]:
        """Training pairs and held-out ones, drawn by the seed; equal pairs are on one side only."""
        pairs = list(zip(self.sources, self.targets, strict=True))
        order = sorted(set(pairs))
        drawn = set(Random(seed).sample(order, min(held_out, len(order) - 1)))
        sides = [[each for each in pairs if (each in drawn) is wanted] for wanted in (False, True)]
        train, held = (
            ParallelText([a for a, _ in side], [b for _, b in side], 0, self.fingerprint)
            for side in sides
        )
        return train, held


def read_parallel_text(source: Path, target: Path) -> ParallelText:
    """Both files, checked.

    Raises:
        SetupError: A file is missing, empty or not UTF-8, or their numbers of lines differ.
    """
    left, right = _lines(source), _lines(target)
    if len(left) != len(right):
        raise SetupError(
            f"{source} has {len(left)} lines and {target} has {len(right)}: line n of one must be "
            "the translation of line n of the other"
        )
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a and b]
    if len(set(pairs)) < LEAST_PAIRS:
        raise SetupError(
            f"{source} and {target} have {len(set(pairs))} different pairs of lines with text on "
            f"both sides; training needs at least {LEAST_PAIRS}"
        )
    fingerprint = sha256("\n".join([*left, "", *right]).encode()).hexdigest()
    return ParallelText(
        [a for a, _ in pairs], [b for _, b in pairs], len(left) - len(pairs), fingerprint
    )


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        SetupError: The file is missing, or not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SetupError(f"{file} does not exist") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SetupError(f"{file} is not UTF-8: line {line} has other bytes") from None


def _lines(file: Path) -> list[str]:
    lines = [line.strip() for line in read_text(file).removesuffix("\n").split("\n")]
    if not any(lines):
        raise SetupError(f"{file} is empty")
    return lines
