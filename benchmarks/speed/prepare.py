"""Makes the folders that engines load, in a process that ends before anything is timed.

CTranslate2's fp32 was up to five times slower in a process that had converted a model (the README
has the figures). `python -m benchmarks.speed.prepare MODEL CACHE ENGINE:PRECISION …`
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness.system import System
from benchmarks.speed import llama_cpp
from benchmarks.speed.checkpoints import OURS, bundle, checkpoint, ctranslate2_folder


def prepare_all(model: str, systems: Iterable[System], cache: Path) -> None:
    """Makes what some systems load, in another process."""
    pairs = dict.fromkeys(f"{each.runtime}:{each.precision}" for each in systems)
    command = [sys.executable, "-m", "benchmarks.speed.prepare", model, str(cache), *pairs]
    subprocess.run(command, check=True)


def main() -> None:
    """Makes what is missing."""
    model, cache, *pairs = sys.argv[1:]
    for engine, precision in (pair.split(":") for pair in pairs):
        prepare(engine, precision, model, Path(cache))


def prepare(engine: str, precision: str, model: str, cache: Path) -> None:
    """Makes what one engine loads, if it is missing."""
    if engine in OURS:
        bundle(model, precision, cache, OURS[engine])
    elif engine == "ctranslate2":
        ctranslate2_folder(model, precision, cache)
    elif engine == llama_cpp.RUNTIME:
        llama_cpp.gguf_file(checkpoint(model, cache), precision, cache)
    else:
        checkpoint(model, cache)


if __name__ == "__main__":
    main()
