"""One engine in a process of its own: a line of JSON in, the seconds that it took out."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.encoders.engines import ENGINES, offline
from benchmarks.encoders.models import Work


def main() -> None:
    """`worker ENGINE KIND MODEL CACHE`; `save` in a line is a file for the outputs, or null."""
    engine, kind, model, cache = sys.argv[1:]
    offline()
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loaded = ENGINES[engine](model, kind, Path(cache))
    print(json.dumps({"seconds": 0.0}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        inputs = Work(**asked["work"]).inputs()
        started_s = time.perf_counter()
        outputs = loaded.run(inputs)
        spent_s = time.perf_counter() - started_s
        if asked["save"]:
            np.save(asked["save"], outputs)
        print(json.dumps({"seconds": spent_s}), file=answers, flush=True)


if __name__ == "__main__":
    main()
