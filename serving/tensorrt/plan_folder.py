"""A folder of plans and their keys: complete ones alone are seen, whatever a build is ended by."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.bundle.manifest import Graph
from inference.errors import SetupError


@dataclass(frozen=True)
class PlanKey:
    """Plans with equal keys are interchangeable.

    Attributes:
        model: Of Triton.
        graph: SHA-256 of the ONNX file, its external weights and the profiles.
        tensorrt: Version that builds and runs the plan.
        compute_capability: Of the GPU, such as `9.0`.
    """

    model: str
    graph: str
    tensorrt: str
    compute_capability: str

    @property
    def file(self) -> str:
        """Name of the plan's file."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return f"{self.model}-{digest[:16]}.plan"

    def difference(self, other: PlanKey) -> str:
        """How another plan of the model does not fit, for people."""
        if self.tensorrt != other.tensorrt:
            return f"built by TensorRT {other.tensorrt}, this is {self.tensorrt}"
        if self.compute_capability != other.compute_capability:
            return (
                f"built for compute capability {other.compute_capability}, this GPU has "
                f"{self.compute_capability}"
            )
        return "built from another graph"


def graph_hash(file: Path, graph: Graph) -> str:
    """SHA-256 of a graph's file, its weights beside it, and its profiles."""
    digest = hashlib.sha256()
    for path in (file, file.with_name(f"{file.name}.data")):
        if path.exists():
            with path.open("rb") as content:
                hashlib.file_digest(content, lambda: digest)
    profiles = [each.model_dump(mode="json") for each in graph.profiles]
    digest.update(json.dumps(profiles, sort_keys=True).encode())
    return digest.hexdigest()


_RECORD = ".json"
_PART = ".part"
"""Suffix of what is being written."""


class PlanFolder:
    """Plans and, beside each, the record of its key, size and checksum.

    Args:
        root: Made if it is missing.

    Raises:
        SetupError: it cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"cannot write plans to {root}: {error.strerror}") from error
        if not os.access(root, os.W_OK):
            raise SetupError(f"cannot write plans to {root}: permission denied")

    def find(self, key: PlanKey) -> Path | None:
        """The plan of a key; None if it is missing, damaged or of another key."""
        path = self.root / key.file
        record = self._record(path)
        if record is None or record.get("key") != asdict(key):
            return None
        return path if _describe(path) == record.get("plan") else None

    def others(self, key: PlanKey) -> list[PlanKey]:
        """Keys of the model's other plans."""
        found = []
        for path in sorted(self.root.glob(f"{key.model}-*.plan")):
            record = self._record(path) or {}
            with contextlib.suppress(TypeError):
                other = PlanKey(**record.get("key", {}))
                if other.model == key.model and other != key:
                    found.append(other)
        return found

    def write(self, key: PlanKey, plan: bytes) -> Path:
        """Stores a plan: written to a temporary name, then renamed; its record last."""
        path = self.root / key.file
        path.with_name(path.name + _RECORD).unlink(missing_ok=True)
        self.replace(path.name, plan)
        record = {"key": asdict(key), "plan": _describe(path)}
        self.replace(path.name + _RECORD, json.dumps(record, indent=2).encode() + b"\n")
        return path

    def replace(self, name: str, content: bytes) -> None:
        """Writes a file so that a reader sees all of it or what was there before.

        Raises:
            SetupError: the disk is full or cannot be written.
        """
        temporary = None
        try:
            descriptor, temporary = tempfile.mkstemp(_PART, f".{name}.", self.root)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(self.root / name)
        except OSError as error:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            raise SetupError(f"cannot write {self.root / name}: {error.strerror}") from error

    def read(self, name: str) -> bytes:
        """A file's content; empty if it is missing."""
        try:
            return (self.root / name).read_bytes()
        except OSError:
            return b""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One build at a time, over all processes that use the folder: they share a GPU's time."""
        with (self.root / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Under the lock, temporary files are those of killed builds.
            for path in self.root.glob(f".*{_PART}"):
                path.unlink(missing_ok=True)
            yield

    def _record(self, path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.with_name(path.name + _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None


def _describe(path: Path) -> dict[str, Any] | None:
    """Size and checksum of a plan; None if there is none."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": path.stat().st_size, "sha256": digest}
    except OSError:
        return None
