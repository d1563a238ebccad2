"""Plans for bundles that a supervisor serves: looked up, or built by a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.bundle.manifest import Bundle
from inference.errors import DeviceError
from serving.processes.launcher import launch_command, module_command
from serving.processes.supervision import exit_reason

PROGRAM = module_command("serving.tensorrt")
_TAIL = 5


def plan_folder(repository: Path, wanted: Path | None) -> Path:
    """Where plans are kept: the wanted folder, else one beside the repository."""
    if wanted is not None:
        return wanted
    root = repository.resolve()
    return root.with_name(f"{root.name}.plans")


def needs_plan(bundle: Bundle) -> bool:
    """Whether a bundle's graphs are for TensorRT."""
    return bundle.manifest.runtime == "tensorrt"


def relative(plan: Path, version_folder: Path) -> str:
    """A plan's path as `default_model_filename`, which Triton joins to the version's folder."""
    return os.path.relpath(plan.resolve(), version_folder.resolve())


def _visible(card: int, environment: Mapping[str, str]) -> str:
    """The one GPU that a build sees, so that it is number 0 there."""
    listed = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return listed[card] if card < len(listed) else str(card)


class Plans:
    """The plans of one repository. Thread-safe.

    Args:
        folder: Where they are kept.
        progress: Called with one line for each step of a build.
        card: Number of the GPU that plans are for, among those that this process sees.
        program: What builds, as `serving.tensorrt.__main__`.
    """

    def __init__(
        self,
        folder: Path,
        progress: Callable[[str], None],
        card: int = 0,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._program = program
        self._environment = {**os.environ, "CUDA_VISIBLE_DEVICES": _visible(card, os.environ)}
        self._folder = folder
        self._progress = progress
        self._running: set[subprocess.Popen[str]] = set()
        self._failed: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def ready(self, bundle: Bundle, *, again: bool = False) -> dict[str, Path]:
        """Triton model → plan, each built if there is none that fits.

        After a failure a version's plans are looked up alone: a supervisor tries each minute, and
        a build takes minutes.

        Args:
            again: Whether plans that fit are built again.

        Raises:
            DeviceError: a plan cannot be built, or building was stopped.
        """
        version = (bundle.manifest.name, bundle.version)
        arguments = [str(bundle.folder), str(self._folder)]
        arguments += ["--again"] * again + ["--lookup"] * (version in self._failed)
        process = self._start([*self._program, *arguments])
        said: dict[str, Any] = {}
        tail: deque[str] = deque(maxlen=_TAIL)
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    self._read(line, said, tail)
            code = process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
            process.kill()
            process.wait()
        name = f"{bundle.manifest.name} version {bundle.version}"
        if self._is_closed:
            raise DeviceError(f"building the plans of {name} was stopped")
        if "plans" not in said:
            self._failed.add(version)
            reason = said.get("error") or f"{exit_reason(code)}: {' '.join(tail)}"
            raise DeviceError(f"{name} has no plan: {reason}")
        self._failed.discard(version)
        return {model: Path(path) for model, path in said["plans"].items()}

    def open(self) -> None:
        """Allow builds, also those that failed or were ended before."""
        self._is_closed = False
        self._failed.clear()

    def close(self) -> None:
        """End all builds; their temporary files are removed by the next one."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                process.kill()

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            process = subprocess.Popen(
                launch_command(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment,
            )
            self._running.add(process)
            if self._is_closed:
                process.kill()
        return process

    def _read(self, line: str, said: dict[str, Any], tail: deque[str]) -> None:
        """One line of the process: its own JSON, or what TensorRT prints."""
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            tail.append(line.strip())
        elif "progress" in fields:
            self._progress(str(fields["progress"]))
        else:
            said |= fields
