"""What commands print of errors of the operating system."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_PACKAGES = ("export", "inference", "serving", "triptych")


def explain(error: Exception, folder: Path | None = None) -> str:
    """An error's message; of one of the system with the file, or with the folder and the step.

    Errors of writes and of most system calls name no file: "No space left on device".

    Args:
        folder: Where the command writes.
    """
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}"
    place = "" if folder is None else f"{folder}: "
    return f"{place}{reason} (in: {_step(error)})"


def _step(error: OSError) -> str:
    """The phase that was noted (`BaseException.add_note`), else the innermost function of ours."""
    if notes := getattr(error, "__notes__", []):
        return str(notes[0])
    own = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES
    ]
    if not own:
        return "an unknown step"
    return f"{own[-1].f_globals['__name__']}.{own[-1].f_code.co_name}"
