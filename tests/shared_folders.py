"""Folders that parallel test workers make once and share."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, config: pytest.Config) -> Path:
    """A temporary folder of the session, the same in all workers."""
    base = factory.getbasetemp()
    return base.parent if hasattr(config, "workerinput") else base


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, which the first worker makes while the others wait.

    Args:
        folder: In a shared folder.
        make: Fills another folder, which is renamed when it is complete: a failure leaves nothing.
    """
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
