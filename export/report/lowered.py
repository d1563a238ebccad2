"""How far lower precision may be from float32 in a published bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from export.parity.parity_inputs import Array, Observation
from export.parity.verify import output_of
from export.quantization.int8_parity import LEAST_COSINE, joined, row_cosines

_PROCESSORS = 0.01
"""What a cosine on random inputs may differ by between two processors."""


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


def _rows(value: Array) -> Array:
    return value.reshape(-1, value.shape[-1])
