"""Images of prompts: what takes the place of their tokens in a call.

A call has one table of vectors for all image tokens in it, whatever sequences these belong to, so
a running sequence holds nothing of its images but their keys and values. `step.onnx` remains the
file that the gate has judged: it counts the image tokens of a row and reads the next vectors, so
the table is given as one sequence, with the count that stands before a token's row.

Legend: T tokens of a prompt, n vectors, D width.

Decisions D99, D104.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Growth, Manifest, Role
from inference.engine.runners.ort.runner import source_input
from inference.engine.runners.ort.sessions import ImageStates
from inference.engine.runners.protocol import Prompt

Arrays = Mapping[str, NDArray[Any]]
_SHIFT = 3
"""Column of `places`, behind the offsets of three axes (D104)."""


class ImageInputs:
    """Inputs of `step` for the image tokens of a call, all of which read one table.

    `step` takes row `seen` of the table at an image token, and of a row beyond it none.

    Attributes:
        has_axes: Whether positions are not places.
    """

    def __init__(self, manifest: Manifest) -> None:
        assert manifest.images is not None
        self._token_id = manifest.images.token_id
        source = manifest.graphs["step"].input(Role.SOURCE)
        counts = (each.step_input for each in manifest.states if each.counted_token is not None)
        assert source is not None
        self._source, self._seen = source.name, next(counts)
        self._nothing = {name: rows[None] for name, rows in no_rows(manifest, 1).items()}
        self.has_axes = places_of(manifest) is not None

    def of(
        self, token_ids: NDArray[np.int64], counts: Sequence[int], images: Sequence[Arrays]
    ) -> Arrays:
        """The inputs by name.

        Args:
            token_ids: (N,) of the call.
            counts: Of each span.
            images: Rows of each span's first image tokens.
        """
        named = [rows for rows in images if rows]
        tables = {
            name: np.concatenate([rows[name] for rows in named])[None]
            for name in (self._nothing if named else ())
        }
        total = next(iter(tables.values())).shape[1] if tables else 0
        seen = np.full((len(token_ids), 1), total)
        start = row = 0
        for count, rows in zip(counts, images, strict=True):
            if rows:
                added = len(next(iter(rows.values())))
                places = np.flatnonzero(token_ids[start : start + count] == self._token_id)
                seen[start + places[:added], 0] = np.arange(row, row + added)
                row += added
            start += count
        source = np.array([total], np.int32)
        return {**(tables if total else self._nothing), self._seen: seen, self._source: source}


class ImageRows:
    """The rows of a prompt's images, and which of its tokens they take the place of.

    Args:
        token_ids: (T,) of the prompt.
        token_id: Stands for a part of an image.
        rows: (n, …) by the inputs of `step`, of the images that are not left out.
        left_out: Rows of the images before those.
        places: The one of `rows` with offsets from places to positions in axes, and shifts.
    """

    def __init__(
        self,
        token_ids: NDArray[np.int64],
        token_id: int,
        rows: Arrays,
        left_out: int = 0,
        places: str | None = None,
    ) -> None:
        self._left_out = left_out
        self._before = np.concatenate([[0], np.cumsum(token_ids == token_id)])
        self._shifts = np.zeros(1, np.int64)
        if places is not None:
            self._shifts = np.concatenate([[0], np.cumsum(rows[places][:, _SHIFT])])
            offsets = rows[places].copy()
            offsets[:, _SHIFT] = 0  # tokens of the call are shifted by `shifts` already
            rows = {**rows, places: offsets}
        self._rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(rows.nbytes for rows in self._rows.values())

    @property
    def last_shift(self) -> int:
        """Of the tokens behind the prompt."""
        return int(self._shifts[-1])

    def of(self, start: int, stop: int) -> Arrays:
        """Rows of the image tokens in [start, stop); tokens beyond the images have none."""
        first, last = (int(self._before[place]) - self._left_out for place in (start, stop))
        return {name: rows[first:last] for name, rows in self._rows.items()}

    def shifts(self, start: int, stop: int) -> NDArray[np.int64]:
        """(stop - start,): from the places of these tokens to their positions, offsets left out."""
        passed: NDArray[np.int64] = self._before[start + 1 : stop + 1]
        found: NDArray[np.int64] = self._shifts[np.minimum(passed, len(self._shifts) - 1)]
        return found


class ImageEncoder:
    """The graph `admit` of a model whose prompts hold images, and what it has computed of them.

    Images are encoded one by one, so that no bit of one depends on another.

    Args:
        run: Inputs of `admit` → its outputs, valid until the next call.
        kept_bytes: Bound on the rows that are kept for other prompts.
    """

    def __init__(
        self, manifest: Manifest, run: Callable[[Arrays], Arrays], kept_bytes: int
    ) -> None:
        assert manifest.images is not None
        self._images, self._run = manifest.images, run
        self._token_id = manifest.images.token_id
        self._inputs = manifest.graphs["admit"].inputs
        self._states = [each for each in manifest.states if each.growth is Growth.HOLD]
        self._kept = ImageStates(kept_bytes)
        self._nothing = no_rows(manifest)
        self._places = places_of(manifest)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return self._kept.nbytes

    def rows(self, prompt: Prompt, done: int = 0) -> ImageRows:
        """The rows of a prompt's images.

        Args:
            done: Tokens of the prompt that are in blocks already; images that end there are not
                encoded, unless positions depend on them.
        """
        read = np.count_nonzero(prompt.token_ids[:done] == self._token_id)
        left_out, parts = 0, [self._nothing]
        for image in prompt.images:
            count = self._images.tokens_of(*image.shape[:2])
            if self._places is None and left_out + count <= read:
                left_out += count
            else:
                parts.append(self._encode(prompt, image))
        rows = {name: np.concatenate([part[name] for part in parts]) for name in self._nothing}
        return ImageRows(prompt.token_ids, self._token_id, rows, left_out, self._places)

    def clear(self) -> None:
        """Drops what is kept."""
        self._kept.clear()

    def _encode(self, prompt: Prompt, image: NDArray[np.uint8]) -> Arrays:
        """The rows of one image, kept or computed now."""
        key = ImageStates.key(image, prompt.source_ids)
        found = self._kept.get(key)
        if found is None:
            alone = [Prompt(prompt.token_ids, prompt.source_ids, image[None])]
            values = self._run({each.name: source_input(each, alone) for each in self._inputs})
            found = [values[str(each.admit_output)][0].copy() for each in self._states]
            self._kept.put(key, found)
        return {
            each.step_input: cast(NDArray[Any], rows)  # on the host
            for each, rows in zip(self._states, found, strict=True)
        }


def no_rows(manifest: Manifest, count: int = 0) -> Arrays:
    """Rows of zeros, by the inputs of `step` that have a row for each image token."""
    return {
        each.step_input: np.zeros((count, *map(int, each.shape[2:])), each.dtype)
        for each in manifest.states
        if each.growth is Growth.HOLD
    }


def places_of(manifest: Manifest) -> str | None:
    """The input of `step` with offsets and shifts of vectors; None where positions are places."""
    held = (each for each in manifest.states if each.growth is Growth.HOLD)
    return next((each.step_input for each in held if each.dtype == "int64"), None)
