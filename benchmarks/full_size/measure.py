"""One export in a process of its own: wall clock, CPU time, peak memory and the bundle's size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import machine

PHASE = re.compile(r"✓ (.+?) \((\d+\.\d) s\)")
_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Setting:
    """What is exported, and how: the key of a row in the results."""

    name: str
    precision: str = "fp32"
    runtime: str = "onnxruntime"


@dataclass(frozen=True)
class Measured:
    """One export.

    Attributes:
        seconds: Wall clock; cpu_seconds, of all threads, depends less on other work of the machine.
        load: Load average of the machine just before.
        peak_bytes: Largest sum of the resident sets of the exporting process and its children.
        held_bytes: The same without pages of mapped files, which the kernel can drop.
        bundle_bytes: Of everything published.
        phases: Title → seconds, CPU seconds and both peaks of each phase.
        error: The exporter's message, if it failed.
    """

    name: str
    precision: str
    runtime: str
    parameters: int
    seconds: float
    cpu_seconds: float
    load: float
    peak_bytes: int
    held_bytes: int
    bundle_bytes: int
    phases: Mapping[str, Phase]
    error: str | None = None


def measure(setting: Setting, folder: Path) -> Measured:
    """Makes the checkpoint and exports it, each in a process of its own.

    Args:
        folder: Empty; it holds the checkpoint and the bundle afterwards.
    """
    checkpoint, repository = folder / "checkpoint", folder / "repository"
    checkpoint.mkdir(parents=True)
    making = [sys.executable, "-m", "benchmarks.full_size", "--make", setting.name]
    made = run([*making, str(checkpoint)])
    if made.code:
        raise RuntimeError(made.output)
    exporting = [
        sys.executable,
        "-m",
        "export.pipeline.cli",
        str(checkpoint),
        "--name",
        setting.name,
    ]
    exporting += ["--repository", str(repository)]
    exporting += ["--precision", setting.precision, "--runtime", setting.runtime]
    load = machine.load()
    started_s = time.perf_counter()
    done = run(exporting)
    return Measured(
        name=setting.name,
        precision=setting.precision,
        runtime=setting.runtime,
        parameters=int(made.output.splitlines()[-1]),
        seconds=round(time.perf_counter() - started_s, 1),
        cpu_seconds=round(done.cpu_seconds, 1),
        load=load,
        peak_bytes=done.peak.resident_bytes,
        held_bytes=done.peak.held_bytes,
        bundle_bytes=sum(p.stat().st_size for p in repository.rglob("*") if p.is_file()),
        phases=done.phases,
        error=None if done.code == 0 else done.output.strip().splitlines()[-1],
    )


@dataclass(frozen=True)
class Phase:
    """Between two lines of the exporter that end a phase."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class Memory:
    """Of several processes.

    Attributes:
        resident_bytes: Sum of their resident sets.
        held_bytes: The same without pages of mapped files.
    """

    resident_bytes: int = 0
    held_bytes: int = 0

    def largest(self, other: Memory) -> Memory:
        """The larger of each figure."""
        return Memory(
            max(self.resident_bytes, other.resident_bytes), max(self.held_bytes, other.held_bytes)
        )


@dataclass(frozen=True)
class Done:
    """A command that ended.

    Attributes:
        output: Of both streams.
        peak: Largest memory of its processes together.
    """

    output: str
    code: int
    peak: Memory
    cpu_seconds: float
    phases: Mapping[str, Phase]


def run(command: Sequence[str]) -> Done:
    """Runs a command to its end."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    phases: dict[str, Phase] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        with Usage(process.pid) as usage:
            for line in process.stdout:
                lines.append(line)
                if ended := PHASE.search(line):
                    cpu_seconds, peak = usage.since_last()
                    phases[_title(ended[1])] = Phase(
                        float(ended[2]), cpu_seconds, peak.resident_bytes, peak.held_bytes
                    )
        _, status, resources = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Done(
        output="".join(lines),
        code=process.returncode,
        # Sampled: the kernel's own mark begins with that of the process which starts the command.
        peak=usage.peak,
        cpu_seconds=resources.ru_utime + resources.ru_stime,
        phases=phases,
    )


def _title(text: str) -> str:
    """A phase's title without the path that it may hold."""
    return "reading" if text.startswith("reading") else text


class Usage:
    """Samples CPU time and memory of a process and its descendants.

    The kernel's own high-water mark is of one process, and of its whole life.
    """

    def __init__(self, pid: int) -> None:
        self.peak = Memory()
        self._recent = Memory()
        self._cpu_seconds = 0.0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def since_last(self) -> tuple[float, Memory]:
        """CPU seconds, and the peak of memory, since the last call."""
        before, self._cpu_seconds = self._cpu_seconds, _usage(self._pid)[0]
        peak, self._recent = self._recent, Memory()
        return round(self._cpu_seconds - before, 1), peak

    def _sample(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            _, memory = _usage(self._pid)
            self._recent = self._recent.largest(memory)
            self.peak = self.peak.largest(memory)


def _usage(pid: int) -> tuple[float, Memory]:
    """CPU seconds and memory of a process and its descendants; what has ended counts 0."""
    seconds, resident, mapped = 0.0, 0, 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            seconds += times.user + times.system
            resident += each.memory_info().rss
            mapped += _mapped_bytes(each.pid)
    except psutil.NoSuchProcess:
        pass
    return seconds, Memory(resident, resident - mapped)


def _mapped_bytes(pid: int) -> int:
    """Resident pages of files that a process maps; shared memory is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended
        return 0
    found = re.search(r"^RssFile:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
