"""The list of a stored repository's files with their SHA-256, in the form of `sha256sum`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from inference.errors import SetupError

SUMS = "SHA256SUMS"
"""Its name beside the bundles; `sha256sum -c SHA256SUMS` checks a copy that any tool made."""
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")
_CHUNK = 1 << 20


def parse(text: str) -> dict[str, str]:
    """Relative path of each file → its SHA-256.

    Raises:
        SetupError: a line is something else, or a path leaves the folder.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise SetupError(f"{SUMS}, line {number}: expected a SHA-256, two spaces and a path")
        path = PurePosixPath(match[2])
        if path.is_absolute() or ".." in path.parts or "\\" in match[2] or "\0" in match[2]:
            raise SetupError(f"{SUMS}, line {number}: the path leaves the repository")
        found[str(path)] = match[1]
    return found


def render(sums: Mapping[str, str]) -> str:
    """The text of a list, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
