"""The stub of the CUDA libraries, and what it counted."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


class _Counts(ctypes.Structure):
    """`struct counts` of `stub/counts.h`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in (
            "launches", "captured_launches", "captures", "graph_launches", "host_to_device",
            "device_to_host", "device_to_device", "batches", "memsets", "synchronizations",
            "allocations",
        )),
        ("allocated_bytes", ctypes.c_size_t),
        ("capacity_bytes", ctypes.c_size_t),
    ]  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """What happened between two readings; see `stub/counts.h`."""

    launches: int
    captured_launches: int
    captures: int
    graph_launches: int
    host_to_device: int
    device_to_host: int
    device_to_device: int
    batches: int
    memsets: int
    synchronizations: int
    allocations: int

    def __sub__(self, before: Counts) -> Counts:
        earlier = asdict(before)
        return Counts(**{name: count - earlier[name] for name, count in asdict(self).items()})

    def __add__(self, other: Counts) -> Counts:
        others = asdict(other)
        return Counts(**{name: count + others[name] for name, count in asdict(self).items()})


class Stub:
    """The stub that this process loaded as libcudart.

    Raises:
        OSError, AttributeError: another CUDA runtime is loaded, or none.
    """

    def __init__(self) -> None:
        find = ctypes.CDLL("libcudart.so.13").stub_counts
        find.restype = ctypes.POINTER(_Counts)
        self._counts = find().contents

    def read(self) -> Counts:
        """The counts so far."""
        return Counts(**{name: getattr(self._counts, name) for name in Counts.__dataclass_fields__})

    @property
    def allocated_bytes(self) -> int:
        """Device memory in use."""
        return int(self._counts.allocated_bytes)

    @contextmanager
    def free_bytes(self, count: int) -> Iterator[None]:
        """A device on which so much memory is left."""
        before = self._counts.capacity_bytes
        self._counts.capacity_bytes = self._counts.allocated_bytes + count
        try:
            yield
        finally:
            self._counts.capacity_bytes = before
