"""The memory that an export needs, and that this machine can give."""

from __future__ import annotations

from inference.errors import SetupError
from inference.process_limits import available_bytes

_GIB = 1 << 30
_BASE_BYTES = round(0.7 * _GIB)
"""Libraries, and what tracing a graph leaves."""
_WEIGHTS_HELD = 1.2
"""Copies of the weights at the peak: those that a session of ONNX Runtime or OpenVINO packs, with
what its calls need. The network itself is pages of a file (D90)."""
_DEFAULT_SHARE = 0.9


def needed_bytes(network_bytes: int) -> int:
    """About what the export of a network of that size holds beside pages of mapped files.

    It is 0.8 to 1.5 times what was measured, 2.2 for two large towers (`docs/verify.md`).
    """
    return _BASE_BYTES + round(_WEIGHTS_HELD * network_bytes)


def limit_bytes(gib: float | None) -> int:
    """A limit in GiB as bytes; by default nine tenths of what is available to this process."""
    return int(_DEFAULT_SHARE * available_bytes() if gib is None else gib * _GIB)


def require_memory(network_bytes: int, limit_bytes: int) -> None:
    """Refuses an export that needs more memory than it may have.

    Raises:
        SetupError: names both amounts and what to do.
    """
    needed = needed_bytes(network_bytes)
    if needed > limit_bytes:
        raise SetupError(
            f"exporting this checkpoint needs about {in_gib(needed)} of memory (its weights are "
            f"{in_gib(network_bytes)} in float32), and {in_gib(limit_bytes)} may be used: free "
            "memory, use a larger machine, or set --memory-limit"
        )


def in_gib(count: int) -> str:
    """A number of bytes in GiB, for messages."""
    return f"{count / _GIB:,.1f} GiB"
