"""What this process may use of its machine and gives back, and the processor of it.

A process is in control groups of Linux, in one hierarchy of version 2 or in one for each controller
of version 1. Limits of its own groups hold, and those of all groups above them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_PROCESS = Path("/proc/self")
_MEMORY = Path("/proc/meminfo")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a group's limit and use, and the name of its reclaimable page cache in `memory.stat`:
of version 2 and of version 1."""


def usable_cores() -> int:
    """Cores that this process may use, by its affinity and its quotas of processor time.

    A quota is rounded up: half a core is one, one and a half are two.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas()]))


def physical_cores() -> int:
    """`usable_cores`, where hyper-threads of one core count once."""
    cores = os.sched_getaffinity(0)
    shared = {tuple(_words(Path(_SIBLINGS.format(core)))) or core for core in cores}
    return min(len(shared), usable_cores())


def thread_count(wanted: int) -> int:
    """Threads for a runtime that computes on the CPU.

    More threads than cores wait for one another, and a runtime's own default is all cores of the
    machine.

    Args:
        wanted: The most; none, if it is not positive: one for each physical core.
    """
    return min(wanted, usable_cores()) if wanted > 0 else physical_cores()


def return_memory() -> None:
    """Gives what is free in this process back to the system; the C library keeps much of it.

    Collects no garbage, which takes up to a second in a process with many objects: sessions of
    runtimes are freed by their reference counts.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


def available_bytes() -> int:
    """Memory that can be had without swapping.

    All of the machine's where the system does not say.
    """
    kibibytes = _number(_MEMORY, "MemAvailable:")
    if kibibytes is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = kibibytes << 10
    for group in _groups():
        for limit_file, used_file, reclaimable in _LIMITS:
            limit, used = _number(group / limit_file), _number(group / used_file)
            if limit is not None and used is not None:
                cache = _number(group / "memory.stat", reclaimable) or 0
                available = min(available, max(0, limit - used + cache))
    return available


def _quotas() -> Iterator[int]:
    """Cores by each quota, rounded up."""
    for group in _groups():
        files = [group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"]  # version 1
        for words in (_words(group / "cpu.max"), [word for file in files for word in _words(file)]):
            if len(words) == 2 and words[0].isdigit():  # neither "max" nor -1
                yield -(-int(words[0]) // int(words[1]))


def _groups() -> Iterator[Path]:
    """Folders of the groups of this process, and of those above them as far as they are mounted."""
    paths: dict[str, str] = {}  # by controller; "": version 2
    for line in _lines(_PROCESS / "cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in _lines(_PROCESS / "mountinfo"):
        place, _, source = line.partition(" - ")
        root, mount = place.split()[3:5]
        kind, *_, options = source.split(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = options.split(",") if kind == "cgroup" else [""]
        own = Path(next((paths[name] for name in names if name in paths), "/"))
        # A container may see the path on its host: then its group is what is mounted.
        below = own.relative_to(root).parts if own.is_relative_to(root) else ()
        yield from (Path(mount, *below[:depth]) for depth in range(len(below) + 1))


def _lines(path: Path) -> list[str]:
    """Lines of a file; none if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _number(path: Path, name: str = "") -> int | None:
    """The number behind a name in a file, or its first one; None without file or limit."""
    words = ["", *_words(path)]
    found = words[words.index(name) + 1] if name in words[:-1] else ""
    return int(found) if found.isdigit() else None


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
