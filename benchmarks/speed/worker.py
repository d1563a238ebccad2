"""One engine with one model in a process of its own: a line of work in, a line of timing out.

Started by the controller: `python -m benchmarks.speed.worker ENGINE PRECISION THREADS MODEL CACHE`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from benchmarks.speed.engines import ENGINES
from benchmarks.speed.work import Timing, Work


def main() -> None:
    """Answers until the pipe is closed."""
    engine, precision, threads, model, cache = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    peer = ENGINES[engine](model, precision, Path(cache), int(threads))
    answers.write(Timing(peak_bytes=peak_bytes()).line() + "\n")
    answers.flush()
    for line in sys.stdin:
        before = cpu_seconds()
        timing = peer.run(Work.from_json(json.loads(line)))
        timing.cpu_seconds = cpu_seconds() - before
        timing.peak_bytes = peak_bytes()
        answers.write(timing.line() + "\n")
        answers.flush()
    os._exit(0)  # engines with threads of their own need no clean-up


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
