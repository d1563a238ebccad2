"""Pictures named on a command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def pictures(names: Sequence[str]) -> list[bytes | Path]:
    """Paths to read, and the bytes of stdin for `-`."""
    return [sys.stdin.buffer.read() if name == "-" else Path(name) for name in names]
