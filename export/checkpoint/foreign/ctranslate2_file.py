"""CTranslate2's `model.bin`: variables by name, quantised ones as floats.

The format is that of `ctranslate2/specs/model_spec.py` (`ModelSpec._serialize`), binary versions 2
to 6: versions 2 and 3 have the size of an item in place of its type, version 2 has no aliases.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.errors import CheckpointError

NEWEST_VERSION = 6
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_BY_ITEM_SIZE = {4: "float32", 2: "int16", 1: "int8"}
_ITEM_SIZES = {"float32": 4, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2}
_MOST_DIMENSIONS = 4
_INT16_SCALE = 1000.0
"""Of files that store none (`ops::Quantize::global_int16_scale`)."""


@dataclass(frozen=True)
class _Variable:
    """Where a variable lies in the file."""

    shape: tuple[int, ...]
    kind: str
    offset: int


class Variables:
    """The variables of a `model.bin`.

    Attributes:
        spec: Name of the layout, e.g. `TransformerSpec`.
        revision: Of the layout.
        kinds: Types of the variables that have dimensions.

    Raises:
        CheckpointError: it is not such a file, truncated, or of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._used: set[str] = set()
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._position = 0
            self.version, self.spec, self.revision = self._read_head()
            self._variables = self._read_variables()
        except (OSError, ValueError, struct.error) as error:  # mmap refuses empty files
            raise CheckpointError(f"{path} is damaged or truncated: {error}") from error
        self.kinds = {each.kind for each in self._variables.values() if each.shape}

    def has(self, name: str) -> bool:
        """Whether there is a variable of that name."""
        return name in self._variables

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a variable.

        Raises:
            CheckpointError: it is missing.
        """
        return self._find(name).shape

    def kind(self, name: str) -> str:
        """Type of a variable, e.g. `float32`."""
        return self._find(name).kind

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names are of one variable, or of two with equal values."""
        one, two = self._find(name), self._find(other)
        return one == two or (
            one.shape == two.shape and self.tensor(name).equal(self.tensor(other))
        )

    def scalar(self, name: str, default: float) -> float:
        """A number or a flag; the default where the file has none."""
        if not self.has(name):
            return default
        if math.prod(self.shape(name)) != 1:
            raise CheckpointError(f"{self.path}: {name} must be one number")
        return float(self._read(name)[0])

    def text(self, name: str, default: str) -> str:
        """A text; the default where the file has none."""
        return self._read(name).tobytes().decode() if self.has(name) else default

    def tensor(self, name: str) -> Tensor:
        """A copy of a variable; integers are divided by their scale.

        Raises:
            CheckpointError: it is missing, or an integer without a scale that fits.
        """
        variable, values = self._find(name), self._read(name)
        if variable.kind == "bfloat16":
            return torch.from_numpy(values.copy()).view(torch.bfloat16).view(variable.shape)
        if variable.kind.startswith("float"):
            return torch.from_numpy(values.copy()).view(variable.shape)
        table = values.astype(np.float32).reshape(variable.shape)
        return torch.from_numpy(np.divide(table, self._scale(name, variable), out=table))

    def unused(self) -> list[str]:
        """Names of the variables that nothing has read."""
        used = {self._variables[name] for name in self._used}
        return sorted(name for name, each in self._variables.items() if each not in used)

    def _scale(self, name: str, variable: _Variable) -> NDArray[Any]:
        """What the numbers of a quantised variable were multiplied by, for each row or for all."""
        scale = f"{name}_scale"
        if not self.has(scale) and variable.kind == "int16":
            return np.array(_INT16_SCALE, np.float32)
        if not self.has(scale) or self._find(scale).kind != "float32":
            raise CheckpointError(f"{self.path}: {name} is {variable.kind} and has no scale")
        values = self._read(scale).copy()
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise CheckpointError(f"{self.path}: {scale} must hold numbers over 0")
        if values.size == 1:
            return values.reshape(())
        if not variable.shape or values.size != variable.shape[0]:
            raise CheckpointError(f"{self.path}: {scale} does not fit {name} {variable.shape}")
        return values.reshape(-1, *(1,) * (len(variable.shape) - 1))

    def _find(self, name: str) -> _Variable:
        if name not in self._variables:
            raise CheckpointError(f"{self.path} has no variable {name}")
        return self._variables[name]

    def _read(self, name: str) -> NDArray[Any]:
        """A flat view of the file."""
        variable = self._find(name)
        self._used.add(name)
        kind = "int16" if variable.kind == "bfloat16" else variable.kind
        count = math.prod(variable.shape)
        return np.frombuffer(self._bytes, f"<{np.dtype(kind).str[1:]}", count, variable.offset)

    def _read_head(self) -> tuple[int, str, int]:
        version = self._number("I")
        if not 2 <= version <= NEWEST_VERSION:
            raise CheckpointError(
                f"{self.path} has version {version} of CTranslate2's format, or another format: "
                f"versions 2 to {NEWEST_VERSION} are read"
            )
        return version, self._text(), self._number("I")

    def _read_variables(self) -> dict[str, _Variable]:
        found: dict[str, _Variable] = {}
        for _ in range(self._number("I")):
            name = self._text()
            if name in found:
                raise CheckpointError(f"{self.path} is damaged: it has {name} twice")
            found[name] = self._read_variable(name)
        for _ in range(self._number("I") if self.version >= 3 else 0):
            alias, name = self._text(), self._text()
            for suffix in ("", "_scale"):  # a scale's own alias is not always written
                if name + suffix in found:
                    found.setdefault(alias + suffix, found[name + suffix])
        return found

    def _read_variable(self, name: str) -> _Variable:
        dimensions = self._number("B")
        if dimensions > _MOST_DIMENSIONS:
            raise CheckpointError(f"{self.path} is damaged: {name} has {dimensions} dimensions")
        shape = tuple(self._number("I") for _ in range(dimensions))
        number, count = self._number("B"), self._number("I")
        if self.version >= 4:
            kind, size = _TYPES[number] if number < len(_TYPES) else None, count
        else:
            kind, size = _BY_ITEM_SIZE.get(number), number * count
        if kind is None or size != math.prod(shape) * _ITEM_SIZES[kind]:
            raise CheckpointError(
                f"{self.path} is damaged: {name} of shape {shape} has {size} bytes of type {number}"
            )
        start = self._position
        self._position += size
        if self._position > len(self._bytes):
            raise ValueError(f"{name} ends behind the file")
        return _Variable(shape, kind, start)

    def _number(self, code: str) -> int:
        value: int = struct.unpack_from(f"<{code}", self._bytes, self._position)[0]
        self._position += struct.calcsize(code)
        return value

    def _text(self) -> str:
        """A length, and as many bytes, the last of which is zero."""
        length = self._number("H")
        start, self._position = self._position, self._position + length
        if self._position > len(self._bytes):
            raise ValueError("a name ends behind the file")
        return self._bytes[start : max(start, self._position - 1)].decode()
