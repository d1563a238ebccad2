"""Files of weights in safetensors, read with little of them in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_MAPPED_BYTES = 256 << 20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def tensor_names(path: Path, expected: set[str] | None) -> list[str]:
    """Names of a file's tensors, in order.

    Args:
        expected: What an index lists in it; None without an index.

    Raises:
        CheckpointError: the file is missing or damaged, or holds others than those.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, but {INDEX} names it")
    with _reporting_damage(path), safe_open(path, framework="pt") as file:
        names = set(file.keys())
    if expected is not None and names != expected:
        raise CheckpointError(
            f"{path.name} does not hold what {INDEX} lists: {', '.join(sorted(names ^ expected))}"
        )
    return sorted(names)


def read_headers(path: Path, expected: set[str] | None) -> Iterator[tuple[str, Tensor]]:
    """Name, shape and type of each tensor of a file; the tensors are on the device `meta`.

    Raises:
        CheckpointError: as `tensor_names`.
    """
    names = tensor_names(path, expected)
    with _reporting_damage(path), safe_open(path, framework="pt") as file:
        for name in names:
            part = file.get_slice(name)
            dtype = _DTYPES.get(part.get_dtype(), torch.uint8)  # the rest are packed integers
            yield name, torch.empty(part.get_shape(), dtype=dtype, device="meta")


def read_tensors(path: Path, expected: set[str] | None) -> Iterator[tuple[str, Tensor]]:
    """Name and values of each tensor of a file; the values are a view of the file.

    The file is opened again after each `_MAPPED_BYTES`: pages of a mapping stay in memory until its
    last view is gone.

    Raises:
        CheckpointError: as `tensor_names`.
    """
    names = tensor_names(path, expected)
    while names:
        mapped_bytes = 0
        with _reporting_damage(path), safe_open(path, framework="pt") as file:
            while names and mapped_bytes < _MAPPED_BYTES:
                tensor = file.get_tensor(names[0])
                mapped_bytes += tensor.nbytes
                yield names.pop(0), tensor
        del tensor  # the last view of this mapping


@contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    """Raises what reading a file raises as `CheckpointError`."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or truncated: {error}") from error
