"""Files of weights, read with little of them in memory at a time.

Decision D90.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from inference.errors import CheckpointError

LEAST_BYTES = 1 << 20
"""Smaller tensors stay where they are."""


@contextmanager
def tensors_in(folder: Path) -> Iterator[None]:
    """Moves large parameters and buffers, as modules register them, to a file in that folder.

    The file has no name: it is gone with the last of its tensors.

    Raises:
        OSError: the file system is full.
    """
    with ExitStack() as stack:
        store = _Store(stack.enter_context(tempfile.TemporaryFile(dir=folder)))
        for register in (
            register_module_parameter_registration_hook,
            register_module_buffer_registration_hook,
        ):
            # torch's annotation says None; its documentation, a new value or None
            stack.callback(register(cast(Callable[..., None], store.moved)).remove)
        yield


class _Store:
    """Tensors one after the other in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        # Tied tensors are registered twice.
        self._moved: MutableMapping[Tensor, Tensor] = WeakIdKeyDictionary()

    def moved(self, module: nn.Module, name: str, tensor: Tensor | None) -> Tensor | None:
        """What is registered instead; None: the tensor itself."""
        if tensor is None or tensor.device.type != "cpu" or tensor.nbytes < LEAST_BYTES:
            return None
        if tensor in self._moved:
            return self._moved[tensor]
        values = self._empty(tensor)
        held = tensor.detach()
        bits = held.view(torch.uint8) if held.is_contiguous() else held  # of others `any` copies
        if bits.any():  # pages of zeros that nothing wrote to are in neither place
            values.copy_(held)
        if isinstance(tensor, nn.Parameter):
            values = nn.Parameter(values, requires_grad=tensor.requires_grad)
        self._moved[tensor] = self._moved[values] = values
        return values

    def _empty(self, like: Tensor) -> Tensor:
        """Zeros at the end of the file, of another tensor's shape and type."""
        start = -(-self._size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        os.posix_fallocate(self._file.fileno(), start, like.nbytes)  # a full disk fails here
        self._size = start + like.nbytes
        mapped = mmap.mmap(self._file.fileno(), like.nbytes, offset=start)
        return torch.frombuffer(mapped, dtype=like.dtype).view(like.shape)


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
