"""One system with one model in a process of its own: a line of work in, a line of figures out.

Started by `SystemProcess`: `worker LOADER RUNTIME PRECISION THREADS MODEL CACHE`. The module LOADER
has `load(system, model, cache)`, which returns what runs a piece of work.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.harness.system import System


def main() -> None:
    """Answers until the pipe is closed."""
    loader, runtime, precision, threads, model, cache = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    system = System(runtime, precision, int(threads))
    run = import_module(loader).load(system, model, Path(cache))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        before_s = cpu_seconds()
        measured = run(json.loads(line))
        measured |= {"cpu_seconds": cpu_seconds() - before_s, "peak_bytes": peak_bytes()}
        print(json.dumps(measured), file=answers, flush=True)
    os._exit(0)  # systems with threads of their own need no clean-up


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
