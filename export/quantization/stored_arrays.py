"""A list of arrays in a temporary file: the logits of a whole run are larger than a model."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator

import numpy as np

from export.parity.parity_inputs import Array


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
