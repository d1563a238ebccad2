"""Scales for an int8 cache, calibrated on sequences that the model generates.

A checkpoint brings no data (Liu et al. 2023, "LLM-QAT", arXiv 2305.17888, §2.1): the model
continues random sources and first tokens, half of the rows with the most likely token, half with
sampled ones. It also reads random tokens up to its last position, because keys depend on positions.

Real inputs exceed these ranges: on held-out data of the examples, keys and values of translator,
captioner and language model reached 1.5, 1.9 and 2.0 times the calibrated magnitude. So scales
have a margin of two. A margin costs little precision, clipping much: with a margin of four the
least cosine over a held-out run of the translator is 0.9994, with half the needed range 0.57.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.parity.parity_inputs import (
    Admitted,
    Array,
    Feeds,
    Probe,
    Run,
    StepLoop,
    stateless_feeds,
)
from export.quantization.quantize import LARGEST
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Graph, Growth, Manifest

HEADROOM = 2.0
"""What scales can hold, over the largest magnitude seen."""
ROWS = 32
NEW_TOKENS = 64
LONGEST_SOURCE = 32
LONGEST_PROMPT = 2048
_UNKNOWN_LENGTH = 256
_CHUNK = 128  # tokens a call
_GRIDS = 6  # sizes of the blocks of random images: 1, 2, … 32 along a side

Scales = dict[str, NDArray[np.float32]]
"""State → (G·K,) value of one int8 unit in each channel of its cache."""


@dataclass
class CalibrationRun:
    """Consecutive calls of `step`, all rows equally long.

    Attributes:
        tokens: Input tokens, (R, T) for each call.
        logits: Output, (R, V) for each call.
        caches: State → (R, G, P, K) at the end, all P in use.
    """

    tokens: list[NDArray[np.int64]]
    logits: StoredArrays
    caches: dict[str, Array]


def cache_scales(manifest: Manifest, run: Run) -> Scales:
    """Scales for every cache of the decoder; {} where it has none.

    Args:
        run: The float32 graphs.
    """
    reach: Scales = {}
    for done in calibration_runs(manifest, run, seed=0):
        for name, cells in done.caches.items():
            absmax = np.abs(cells).max(axis=(0, 2)).reshape(-1)
            reach[name] = np.maximum(reach.get(name, absmax), absmax)
    # a channel of zeros (the padding of odd head widths) takes any scale
    return {
        name: (HEADROOM / LARGEST * np.where(far > 0, far, 1)).astype(np.float32)
        for name, far in reach.items()
    }


def stateless_calibration(
    manifest: Manifest, graph: Graph, count: int, framing: Framing | None = None
) -> list[Feeds]:
    """Batches that together have about `count` rows: random texts of many lengths, block images.

    Args:
        framing: Completes the texts as the tokenizer does.
    """
    longest = min(manifest.limits.max_input_tokens or _UNKNOWN_LENGTH, _UNKNOWN_LENGTH)
    vocabulary = manifest.source_vocabulary_size or 1
    probe = _BlockImages(vocabulary, vocabulary, seed=0, framing=framing)
    lengths = [length for length in (4, 8, 16, 32, 64, 128, 256) if length <= longest] or [longest]
    rows = -(-count // len(lengths))
    return [stateless_feeds(graph, manifest, probe, rows, length) for length in lengths]


def calibration_runs(
    manifest: Manifest, run: Run, seed: int, follow: Sequence[CalibrationRun] | None = None
) -> list[CalibrationRun]:
    """A generated continuation and a random prompt; [] without caches.

    Args:
        follow: Runs whose tokens are fed again, whatever these logits would choose.
    """
    if not any(state.growth is Growth.APPEND for state in manifest.states):
        return []
    forced = follow[0].tokens if follow else None
    return [_continue_run(manifest, run, seed, forced), _random_prompt(manifest, run, seed)]


def _continue_run(
    manifest: Manifest, run: Run, seed: int, forced: Sequence[NDArray[np.int64]] | None
) -> CalibrationRun:
    """Generates from the start tokens or one random token; even rows greedily, odd ones sampled."""
    probe = _probe(manifest, seed)
    assert manifest.generation is not None
    start = manifest.generation.decoder_start_ids
    tokens = np.tile(np.array(start, np.int64), (ROWS, 1))
    if not start:
        tokens = probe.tokens(ROWS, 1, probe.vocabulary)
    longest = min(tokens.shape[1] + NEW_TOKENS, _positions(manifest))
    call = _start(manifest, run, probe, ROWS, longest)
    done = CalibrationRun([], StoredArrays(), {})
    length = 0
    while length < longest:
        if forced is not None:
            tokens = forced[len(done.tokens)]
        length += tokens.shape[1]
        logits = call(tokens, np.full(ROWS, length, np.int32), tokens.shape[1])
        done.tokens.append(tokens)
        done.logits.append(logits)
        if forced is None:
            tokens = _choose(logits, probe.random)
    done.caches = _caches(manifest, call)
    return done


def _choose(logits: Array, random: np.random.Generator) -> NDArray[np.int64]:
    """(R, 1) next tokens; Gumbel noise on the logits of odd rows samples."""
    noise = random.gumbel(size=logits.shape)
    noise[::2] = 0
    chosen: NDArray[np.int64] = (logits + noise).argmax(axis=-1)[:, None]
    return chosen


def _random_prompt(manifest: Manifest, run: Run, seed: int) -> CalibrationRun:
    """One row of random tokens in chunks, to the last position."""
    probe = _probe(manifest, seed)
    length = _positions(manifest)
    call = _start(manifest, run, probe, 1, length)
    tokens = probe.tokens(1, length, probe.vocabulary)
    done = CalibrationRun([], StoredArrays(), {})
    for start in range(0, length, _CHUNK):
        chunk = tokens[:, start : start + _CHUNK]
        stop = start + chunk.shape[1]
        done.tokens.append(chunk)
        done.logits.append(call(chunk, np.array([stop], np.int32), chunk.shape[1]))
    done.caches = _caches(manifest, call)
    return done


def _start(manifest: Manifest, run: Run, probe: Probe, rows: int, length: int) -> StepLoop:
    """Random sources of mixed lengths, admitted; caches have room for just `length`."""
    longest = min(LONGEST_SOURCE, manifest.limits.max_input_tokens or LONGEST_SOURCE)
    return StepLoop(run, manifest, Admitted.make(run, manifest, probe, rows, longest), length)


def _caches(manifest: Manifest, call: StepLoop) -> dict[str, Array]:
    appended = (state for state in manifest.states if state.growth is Growth.APPEND)
    return {state.name: call.values[state.step_input] for state in appended}


def _positions(manifest: Manifest) -> int:
    return min(manifest.limits.max_total_tokens or _UNKNOWN_LENGTH, LONGEST_PROMPT)


def _probe(manifest: Manifest, seed: int) -> Probe:
    vocabulary = manifest.vocabulary_size or 1
    size = manifest.source_vocabulary_size or vocabulary
    return _BlockImages(size, vocabulary, seed, images=manifest.images)


class _BlockImages(Probe):
    """Images of coloured blocks, coarse to fine: an image tower averages pure noise to grey."""

    def pixels(self, count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
        """(count, height, width, 3), or (count, images, height, width, 3)."""
        if len(shape) == 4:
            several = [self.pixels(shape[0], shape[1:]) for _ in range(count)]
            return np.stack(several)
        return np.stack([self._image(shape, 1 << index % _GRIDS) for index in range(count)])

    def _image(self, shape: Sequence[int], blocks: int) -> NDArray[np.uint8]:
        """At least this many blocks along each side."""
        height, width, channels = shape
        side = max(1, min(height, width) // blocks)
        grid = (-(-height // side), -(-width // side), channels)
        colours = self.random.integers(0, 256, grid, dtype=np.uint8)
        return colours.repeat(side, axis=0).repeat(side, axis=1)[:height, :width]


class StoredArrays:
    """Arrays in the order in which they were appended, read from disk at each access."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the object lives
        weakref.finalize(self, self._file.close)
        self._starts: list[int] = []

    def append(self, value: Array) -> None:
        """Writes one array."""
        self._file.seek(0, 2)
        self._starts.append(self._file.tell())
        np.save(self._file, value, allow_pickle=False)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Array:
        self._file.seek(self._starts[index])
        value: Array = np.load(self._file, allow_pickle=False)
        return value

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))
