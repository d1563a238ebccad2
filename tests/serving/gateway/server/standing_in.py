"""Stands in for a worker in tests of the supervisor: starts as one, beats, follows commands.

What it does else is in the file `behaviour` of its working folder: `fails`, `hangs`, or nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from serving.gateway.server.shared_counts import Field
from serving.gateway.server.worker_process import ABORT, DRAIN, Start


def main() -> int:
    start = Start.read(0)
    behaviour = Path("behaviour").read_text()
    if behaviour == "fails":
        return 1
    segment = start.segment()
    signal.signal(signal.SIGUSR2, lambda *_: _log(f"stacks of {start.number}"))
    segment.words[segment.place(start.number, Field.REQUESTS)] = 5
    given = b""
    while DRAIN not in given or (behaviour == "busy" and ABORT not in given):
        if behaviour != "hangs" or start.number == 0:
            segment.words[segment.place(start.number, Field.BEATS)] += 1
        if behaviour == "hangs" and segment.read(start.number, Field.BEATS) == 0:
            segment.words[segment.place(start.number, Field.BEATS)] = 1
        time.sleep(0.01)
        if select.select([0], [], [], 0)[0]:
            command = os.read(0, 9)
            given += command or DRAIN
    _log(f"{start.number} ends after {given.decode()}")
    return 0


def _log(line: str) -> None:
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
