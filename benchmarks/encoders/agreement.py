"""Served vectors beside those of `transformers` in float32, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoders.in_process import compute_outputs, start
from benchmarks.encoders.models import MODELS, Work
from benchmarks.encoders.servers import Server
from benchmarks.encoders.traffic import Item

REFERENCE = "transformers fp32"
LEAST_COSINE = {"fp32": 0.99, "bf16": 0.99, "int8": 0.9}
"""Of the worst item; below, the measurement is refused. With random weights int8 costs more than
with a trained model's, so its cosine is stated with the speeds."""
MIXED_TOKENS = (7, 9, 17, 20, 33, 48, 62)
Vectors = Sequence[NDArray[Any]]


def probes(model: str, longest: int) -> list[Work]:
    """One item each: texts of every measured length and of others, or JPEG files."""
    lengths = MODELS[model].lengths
    if not lengths:
        return [Work("jpeg", 1, seed=seed) for seed in range(8)]
    tokens = [length for length in (*lengths, *MIXED_TOKENS) if length <= longest]
    return [Work("text", 1, length, seed) for seed, length in enumerate(tokens)]


def item(work: Work) -> Item:
    """What is sent for a probe."""
    inputs = work.inputs()
    if isinstance(inputs, list):
        return inputs[0]
    return " ".join(f"w{number}" for number in inputs[0, 1:-1])


def reference(model: str, works: Sequence[Work], cache: Path) -> Vectors:
    """The vectors of `transformers`, in a process that ends afterwards."""
    with start(REFERENCE, model, cache) as process:
        return [compute_outputs(process, work)[0] for work in works]


def check(engine: str, server: Server, works: Sequence[Work], expected: Vectors) -> dict[str, Any]:
    """Compare a server's vectors, all requested at once, so that they may share batches.

    Raises:
        RuntimeError: a vector is too far from the reference.
    """
    with ThreadPoolExecutor(len(works)) as pool:
        found = list(pool.map(server.vector, map(item, works)))
    agreement = compare(found, expected)
    least = LEAST_COSINE[engine.rpartition("-")[2]]
    if agreement["least_cosine"] < least:
        raise RuntimeError(f"{engine} differs from {REFERENCE}: {agreement}, allowed {least}")
    return dict(agreement)


def compare(found: Vectors, expected: Vectors) -> Mapping[str, float]:
    """Cosines of each pair, and how many vectors are nearest to their own reference."""
    cosines = _units(found) @ _units(expected).T
    own = np.diag(cosines)
    return {
        "least_cosine": round(float(own.min()), 5),
        "mean_cosine": round(float(own.mean()), 5),
        "nearest_to_own": round(float(np.mean(cosines.argmax(1) == np.arange(len(own)))), 3),
    }


def _units(vectors: Vectors) -> NDArray[np.float64]:
    stacked = np.stack(vectors).astype(np.float64)
    return np.asarray(stacked / np.linalg.norm(stacked, axis=1, keepdims=True))
