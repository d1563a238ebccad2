"""Where a request's time went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Where a request's time went."""

    tokenization_s: float
    queue_s: float
    """The longest wait of one of its calls."""
    inference_s: float
    """From the start of its first call to the last outcome; of a stream, to the first chunk."""
