"""How far a decoder's keys and values reach, so that an int8 cache can hold them.

A checkpoint brings no data, so the model makes its own (Liu et al. 2023, "LLM-QAT", arXiv
2305.17888, §2.1): it continues by itself after random sources and first tokens, half of the rows
with the likeliest token, half with drawn ones. Besides it reads random tokens up to its last
position, because keys know their position.

Real inputs reach further: on held-out data of the examples, keys and values of translator,
captioner and language model came to 1.5, 1.9 and 2.0 times what their calibration saw. So scales
leave twice the room. Room is cheap, clipping is dear: with four times the room the least cosine
over a held-out course of the translator is 0.9994, with half of what is needed 0.57.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.probe import Admitted, Array, Probe, Run, StepCall
from export.quantize import LARGEST
from serving.bundle import Growth, Manifest

HEADROOM = 2.0
"""What scales can hold, over the largest magnitude seen."""
ROWS = 32
NEW_TOKENS = 64
LONGEST_SOURCE = 32
LONGEST_READING = 2048
_UNKNOWN_LENGTH = 256
_PIECE = 128  # tokens that are read in one call
_GRIDS = 6  # sizes of pictures' blocks: 1, 2, … 32 along a side

Scales = dict[str, NDArray[np.float32]]
"""State → (H·K,) what 1 in each channel of its cache stands for."""


@dataclass
class Course:
    """Calls of `step` one after the other, all rows equally long.

    Attributes:
        tokens: What was told, (R, T) a call.
        logits: What was answered, (R, V) a call.
        caches: State → (R, H, P, K) at the end, all P in use.
    """

    tokens: list[NDArray[np.int64]]
    logits: list[Array]
    caches: dict[str, Array]


def cache_scales(manifest: Manifest, run: Run) -> Scales:
    """Scales that hold whatever the decoder kept in its caches; {} where it has none.

    Args:
        run: The float32 graphs.
    """
    reach: Scales = {}
    for course in courses(manifest, run, seed=0):
        for name, cells in course.caches.items():
            absmax = np.abs(cells).max(axis=(0, 2)).reshape(-1)
            reach[name] = np.maximum(reach.get(name, absmax), absmax)
    # a channel of zeros (the padding of odd head widths) takes any scale
    return {
        name: (HEADROOM / LARGEST * np.where(far > 0, far, 1)).astype(np.float32)
        for name, far in reach.items()
    }


def courses(
    manifest: Manifest, run: Run, seed: int, follow: Sequence[Course] | None = None
) -> list[Course]:
    """A continuation and a reading; [] without caches.

    Args:
        follow: Say what was said there, whatever this run would choose.
    """
    if not any(state.growth is Growth.APPEND for state in manifest.states):
        return []
    said = follow[0].tokens if follow else None
    return [_continued(manifest, run, seed, said), _read(manifest, run, seed)]


def _continued(
    manifest: Manifest, run: Run, seed: int, said: Sequence[NDArray[np.int64]] | None
) -> Course:
    """From the start tokens, or one random token, on; even rows take the best, odd ones draw."""
    probe = _probe(manifest, seed)
    assert manifest.generation is not None
    start = manifest.generation.decoder_start_ids
    tokens = np.tile(np.array(start, np.int64), (ROWS, 1))
    if not start:
        tokens = probe.tokens(ROWS, 1, probe.vocabulary)
    longest = min(tokens.shape[1] + NEW_TOKENS, _positions(manifest))
    call = _start(manifest, run, probe, ROWS, longest)
    course = Course([], [], {})
    length = 0
    while length < longest:
        if said is not None:
            tokens = said[len(course.tokens)]
        length += tokens.shape[1]
        logits = call(tokens, np.full(ROWS, length, np.int32), tokens.shape[1])
        course.tokens.append(tokens)
        course.logits.append(logits)
        tokens = _chosen(logits, probe.random)
    course.caches = _caches(manifest, call)
    return course


def _chosen(logits: Array, random: np.random.Generator) -> NDArray[np.int64]:
    """(R, 1) next tokens; a draw is the best after Gumbel noise."""
    noise = random.gumbel(size=logits.shape)
    noise[::2] = 0
    return (logits + noise).argmax(axis=-1)[:, None]


def _read(manifest: Manifest, run: Run, seed: int) -> Course:
    """One row of random tokens, piece by piece to the last position."""
    probe = _probe(manifest, seed)
    length = _positions(manifest)
    call = _start(manifest, run, probe, 1, length)
    tokens = probe.tokens(1, length, probe.vocabulary)
    course = Course([], [], {})
    for start in range(0, length, _PIECE):
        piece = tokens[:, start : start + _PIECE]
        stop = start + piece.shape[1]
        course.tokens.append(piece)
        course.logits.append(call(piece, np.array([stop], np.int32), piece.shape[1]))
    course.caches = _caches(manifest, call)
    return course


def _start(manifest: Manifest, run: Run, probe: Probe, rows: int, length: int) -> StepCall:
    """Random sources of mixed lengths, admitted; caches have room for just `length`."""
    longest = min(LONGEST_SOURCE, manifest.limits.max_input_tokens or LONGEST_SOURCE)
    return StepCall(run, manifest, Admitted.make(run, manifest, probe, rows, longest), length)


def _caches(manifest: Manifest, call: StepCall) -> dict[str, Array]:
    appended = (state for state in manifest.states if state.growth is Growth.APPEND)
    return {state.name: call.values[state.step_input] for state in appended}


def _positions(manifest: Manifest) -> int:
    return min(manifest.limits.max_total_tokens or _UNKNOWN_LENGTH, LONGEST_READING)


def _probe(manifest: Manifest, seed: int) -> Probe:
    vocabulary = manifest.vocabulary_size or 1
    return _BlockPictures(manifest.source_vocabulary_size or vocabulary, vocabulary, seed)


class _BlockPictures(Probe):
    """Pictures of coloured blocks, coarse to fine: to an image tower pure noise is all one grey."""

    def pixels(self, count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
        """(count, height, width, 3)."""
        return np.stack([self._picture(shape, 1 << index % _GRIDS) for index in range(count)])

    def _picture(self, shape: Sequence[int], blocks: int) -> NDArray[np.uint8]:
        """At least so many blocks along each side."""
        height, width, channels = shape
        side = max(1, min(height, width) // blocks)
        grid = (-(-height // side), -(-width // side), channels)
        colours = self.random.integers(0, 256, grid, dtype=np.uint8)
        return colours.repeat(side, axis=0).repeat(side, axis=1)[:height, :width]
