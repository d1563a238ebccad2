"""The processor of this machine, in words."""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
KINDS = {
    "AMX": "amx_int8",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-VNNI": "avx_vnni",
    "AVX-512": "avx512f",
    "AVX2": "avx2",
}
"""Kinds of x86 processors by the instructions that multiply bytes, with the flag of each: the best
first. Runtimes choose their kernels, and so speed and int8 numbers, by them."""


def processor_name() -> str:
    """Its model, as the system names it."""
    return _field("model name") or platform.machine()


def processor_kind() -> str:
    """The first of `KINDS` whose instructions it has, else its architecture, as ARM64."""
    flags = _field("flags").split()
    found = (kind for kind, flag in KINDS.items() if flag in flags)
    return next(found, platform.machine().replace("aarch64", "ARM64"))


def _field(name: str) -> str:
    """What the system states of the first processor; nothing where it does not."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), "")
