"""Int8 graphs of a bundle against the float32 graphs that they were rewritten from.

The float32 graphs have passed `verify`, so they are the reference. Logits may differ within
`LEAST_COSINE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.parity.parity_inputs import Array, Observation
from export.parity.verify import ParityError, output_of
from inference.bundle.manifest import Graph, Role

LEAST_COSINE = 0.98
"""Between the logits or embeddings of one row; less means a layer that int8 cannot represent."""
_PROCESSORS = 0.01
"""What a cosine on random inputs may differ by between two processors."""


@dataclass
class Int8Parity:
    """How a rewritten bundle compares with its float32 original.

    Attributes:
        four_bits: Of the layers, those with weights of 4 bits.
        least_cosine: Of one row's logits, states or embeddings, over all observations: of random
            inputs, or of the user's samples that no scale was taken from.
        mean_cosine: Over all rows.
        same_best: Share of rows whose most likely token, or class of a user's sample, is the same;
            None where nothing is chosen.
        random_cosine: `least_cosine` of random inputs, where the user gave samples.
        calibration: The user's samples: names, how many, and how many were held out.
        products: Products of bytes that were computed again in float64 (`product_check.py`); 0
            where the runtime has them inside.
        product_error: The largest error of a product's value, relative to the largest of its row.
        rows_alone: Rows whose results equal, bit for bit, those of the row alone.
        hypotheses_alone: Hypotheses whose tokens equal those of the request alone.
        original_bytes: Of the float32 files.
        cache: dtype of the self-attention cache, int8 or float32; None without a cache.
        cache_cosine: Least cosine between logits with an int8 cache and without, on held-out runs.
        cache_clipped: Share of those runs' keys and values that the int8 scales clipped.
    """

    precision: str
    layers: int = 0
    tables: int = 0
    four_bits: int = 0
    least_cosine: float = 1.0
    mean_cosine: float = 1.0
    same_best: float | None = None
    random_cosine: float | None = None
    calibration: dict[str, Any] | None = None
    products: int = 0
    product_error: float = 0.0
    rows_alone: int = 0
    hypotheses_alone: int = 0
    original_bytes: int = 0
    cache: str | None = None
    cache_cosine: float | None = None
    cache_clipped: float | None = None


def compared_outputs(graph: Graph) -> list[str]:
    """Outputs without the caches, whose cells beyond a row's length are undefined."""
    kept = {port.name for port in graph.inputs if port.role is Role.STATE}
    return [p.name for p in graph.outputs if p.role is not Role.STATE or not kept]


def share(value: Array, index: int, count: int) -> Array:
    """The rows of one of `count` sequences; scalars belong to all."""
    if not value.ndim:
        return value
    each = len(value) // count
    return value[index * each : (index + 1) * each]


def compare(
    parity: Int8Parity,
    wanted: list[Observation],
    given: list[Observation],
    remedy: str = "",
) -> None:
    """Adds cosines to the report.

    Args:
        remedy: Ends the error.

    Raises:
        ParityError: one is below `LEAST_COSINE`.
    """
    worst, place = least_cosine(wanted, given)
    if not worst >= LEAST_COSINE:  # NaN must fail
        raise ParityError(
            f"{parity.precision} changes {place} too much: cosine {worst:.4f}, "
            f"{LEAST_COSINE} is required; nothing was published{remedy}"
        )
    pairs = list(pairs_of(joined(wanted), joined(given)))
    cosines = np.concatenate([row_cosines(a, b) for a, b in pairs])
    parity.least_cosine, parity.mean_cosine = float(cosines.min()), float(cosines.mean())
    is_sampled = parity.calibration is not None
    same = [
        a.argmax(axis=-1) == b.argmax(axis=-1)
        for want, (a, b) in zip(wanted, pairs_of(wanted, given), strict=True)
        if want.place.startswith(("step", "prefill", "chunk"))
        or (is_sampled and want.place.endswith(" logits") and a.shape[-1] > 1)
    ]
    parity.same_best = float(np.concatenate(same).mean()) if same else None


def least_cosine(wanted: list[Observation], given: list[Observation]) -> tuple[float, str]:
    """The least cosine of two rows, and where it is; NaN if any is NaN."""
    wanted, given = joined(wanted), joined(given)
    found = [float(row_cosines(a, b).min()) for a, b in pairs_of(wanted, given)]
    index = int(np.argmin(found))  # the first NaN, if there is one
    return found[index], wanted[index].place


def joined(observations: Sequence[Observation]) -> list[Observation]:
    """Outputs of one number a text (its relevance) as one row: a single number has no angle."""
    kept: list[Observation] = []
    numbers: dict[str, list[Array]] = {}
    for observation in observations:
        if observation.value.shape[-1] > 1:
            kept.append(observation)
        else:
            name = output_of(observation.place)
            numbers.setdefault(name, []).append(observation.value.reshape(-1))
    return kept + [Observation(name, np.concatenate(each)) for name, each in numbers.items()]


def pairs_of(
    wanted: Sequence[Observation], given: Iterable[Observation]
) -> Iterator[tuple[Array, Array]]:
    """Both values of each observation, (rows, last dimension)."""
    for want, got in zip(wanted, given, strict=True):
        yield _rows(want.value), _rows(got.value)


def _rows(value: Array) -> Array:
    return value.reshape(-1, value.shape[-1])


def row_cosines(a: Array, b: Array) -> Array:
    """Of each pair of rows, in float64; 1 where one is of zeros, NaN where one has a NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.where(lengths == 0, 1.0, (a * b).sum(axis=-1) / np.maximum(lengths, 1e-300))


def least_cosines(wanted: Sequence[Observation], given: Sequence[Observation]) -> dict[str, float]:
    """Graph and output → the least cosine of a row with its original; NaN if any is."""
    found: dict[str, float] = {}
    for want, got in zip(joined(wanted), joined(given), strict=True):
        least = float(row_cosines(_rows(want.value), _rows(got.value)).min())
        output = output_of(want.place)
        found[output] = min(found.get(output, 1.0), least) if least == least else least
    return found


def required_cosine(recorded: Mapping[str, Any]) -> tuple[float, str]:
    """The least cosine on random inputs, and why it is not the gate's own.

    A bundle that was calibrated on a user's samples was compared on samples. They are not in the
    bundle, so on random inputs it must be as close as it was then.

    Args:
        recorded: The report that was written at export.
    """
    int8 = recorded.get("int8", {})
    if not int8.get("calibration"):
        return LEAST_COSINE, ""
    names = ", ".join(int8["calibration"]["from"])
    why = f" on random inputs; {int8['least_cosine']:.4f} on samples of {names} at export"
    return min(LEAST_COSINE, int8["random_cosine"] - _PROCESSORS), why
