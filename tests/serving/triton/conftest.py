from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One whose path leaves room for a socket's name; that of `tmp_path` may be too long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)
