"""Stateless batches: sequences of similar length padded alike, so that calls can be joined.

Lengths are padded to multiples of 8 everywhere. Padding costs as much as tokens, and a call as much
as 25 to 45 tokens (int8 encoders on a CPU), so a bucket twice as wide pays only while calls have a
few rows. Simulated with 8 to 128 requests in flight over distributions of lengths, wider buckets
gave 0.5 to 1.03 of the throughput, and narrower ones 0.7 to 1.09.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.bundle.manifest import Graph, Role

ROWS = 8
"""Maximum rows of one call: ONNX Runtime is most efficient there, and every part takes as many."""

_WIDTH = 8


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sequences of one padded length."""

    rows: tuple[int, ...]
    """Their positions among all sequences."""
    token_ids: npt.NDArray[np.int64]  # (B, T), right-padded
    lengths: npt.NDArray[np.int32]  # (B,)


def buckets(
    sequences: Sequence[Sequence[int]], pad: int, limit: int | None, width: int | None = None
) -> Iterator[Bucket]:
    """Sequences grouped by padded length, at most `ROWS` in a group.

    Args:
        sequences: Token ids, none longer than `limit`.
        width: The length that all are padded to, where the graph takes one only.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for row, sequence in enumerate(sequences):
        groups[width or padded_length(len(sequence), limit)].append(row)
    for length, rows in sorted(groups.items()):
        for start in range(0, len(rows), ROWS):
            yield _padded(rows[start : start + ROWS], sequences, length, pad)


def padded_length(length: int, limit: int | None) -> int:
    """The length of the bucket that a sequence is in."""
    rounded = -(-length // _WIDTH) * _WIDTH
    return min(rounded, limit) if limit else rounded


def fixed_width(graph: Graph) -> int | None:
    """T of a graph whose texts are all padded to it; None where texts differ in length."""
    tokens = graph.input(Role.TOKENS)
    size = tokens.shape[1] if tokens else None
    return size if isinstance(size, int) else None


def _padded(rows: list[int], sequences: Sequence[Sequence[int]], width: int, pad: int) -> Bucket:
    token_ids = np.full((len(rows), width), pad, dtype=np.int64)
    for position, row in enumerate(rows):
        token_ids[position, : len(sequences[row])] = sequences[row]
    lengths = np.array([len(sequences[row]) for row in rows], dtype=np.int32)
    return Bucket(tuple(rows), token_ids, lengths)
