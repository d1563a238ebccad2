"""Large tensors of a network in a file: the kernel writes their pages back and can drop them.

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
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

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
        if tensor.any():  # pages of zeros that nothing wrote to are in neither place
            values.copy_(tensor.detach())
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
