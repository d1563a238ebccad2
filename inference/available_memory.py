"""The memory that this process can still have."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def available_bytes() -> int:
    """Memory that can be had without swapping, within the limit of a container.

    All of the machine's where the system does not say.
    """
    kibibytes = _number(_MEMORY, "MemAvailable:")
    if kibibytes is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = kibibytes << 10
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return available
    reclaimable = _number(_CGROUP / "memory.stat", "inactive_file") or 0  # page cache
    return min(available, max(0, limit - used + reclaimable))


def _number(path: Path, name: str = "") -> int | None:
    """The number behind a name in a file, or its first one; None without file or limit."""
    try:
        words = ["", *path.read_text(encoding="ascii").split()]
    except OSError:
        return None
    found = words[words.index(name) + 1] if name in words else ""
    return int(found) if found.isdigit() else None
