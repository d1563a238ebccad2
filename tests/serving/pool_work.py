"""Functions that processes of the tests run."""

from __future__ import annotations

import os
import time
from pathlib import Path


def sleep(*arguments: object) -> None:
    """Writes its process id into the file whose name ends the bytes among its arguments, and stays.

    The name follows a zero byte.
    """
    content = next(one for one in arguments if isinstance(one, bytes))
    file = Path(content.rpartition(b"\0")[2].decode())
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    time.sleep(3600)
