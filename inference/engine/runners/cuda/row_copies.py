"""Copies of entries as blocks of lines, in batches whose copies may run in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from inference.engine.state.device import EntryCopies


@dataclass(frozen=True, eq=False)
class BlockCopies:
    """Copies of equal shape: `height` lines of `width` bytes each, which begin a pitch apart.

    Attributes:
        targets: (copies,) addresses of the first lines.
        sources: (copies,) the same.
    """

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    target_pitch: int
    source_pitch: int
    width: int
    height: int


def batches(jobs: Sequence[EntryCopies]) -> list[list[BlockCopies]]:
    """The jobs in batches: no copy touches what another one of its batch writes."""
    found: list[list[BlockCopies]] = []
    for job in jobs:
        source, target, axis = job.source, job.target, job.axis
        assert source.dtype == target.dtype
        if axis is None:  # an entry is one line
            assert source.shape[1:] == target.shape[1:]
            height, width = 1, target.stride(0)
            pitches = width, width
        else:
            assert source.shape[1:axis] == target.shape[1:axis]
            assert source.shape[axis + 1 :] == target.shape[axis + 1 :]
            assert job.length <= min(source.shape[axis], target.shape[axis])
            height, step = prod(target.shape[1:axis]), target.stride(axis)
            width, pitches = (
                job.length * step,
                (target.shape[axis] * step, source.shape[axis] * step),
            )
        if not width * height:
            continue
        for index, pairs in enumerate(_independent(job.pairs)):
            if index == len(found):
                found.append([])
            read, written = pairs[:, 0], pairs[:, 1]
            assert read.max() < source.shape[0]
            assert written.max() < target.shape[0]
            targets = target.address + written * target.stride(0)
            sources = source.address + read * source.stride(0)
            found[index].append(BlockCopies(targets, sources, *pitches, width, height))
    return found


def _independent(pairs: Sequence[tuple[int, int]]) -> list[NDArray[np.int64]]:
    """The pairs in parts, (pairs, 2), each as early as those that it depends on allow.

    In a part no entry is written that another pair reads or writes.
    """
    after_reading, after_writing = dict[int, int](), dict[int, int]()  # entry → the first part
    parts: list[list[tuple[int, int]]] = []
    for source, target in pairs:
        written = max(after_writing.get(source, 0), after_writing.get(target, 0))
        index = max(written, after_reading.get(target, 0))
        if index == len(parts):
            parts.append([])
        parts[index].append((source, target))
        after_writing[target] = index + 1
        after_reading[source] = max(after_reading.get(source, 0), index + 1)
    return [np.array(part, np.int64) for part in parts]
