"""What is attacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Target:
    """A running `triptych serve`.

    Attributes:
        host: Of the gateway.
        port: Over HTTP.
        grpc_address: Over gRPC.
        pid: Of `triptych serve`.
        folder: Its log, and what clients have stored.
        key: The attacker's; None where none is needed.
        other_key: The other client's.
        workers: Processes of the gateway.
        has_images: Whether it serves a model of images.
    """

    host: str
    port: int
    grpc_address: str
    pid: int
    folder: Path
    key: str | None
    other_key: str | None
    workers: int
    has_images: bool = True

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.folder / "serve.log"

    def gateway(self) -> list[psutil.Process]:
        """The gateway's processes."""
        found = []
        for child in _of(psutil.Process(self.pid).children()):
            if "gateway" in child.cmdline():
                found += [child, *child.children(recursive=True)]
        return found

    def triton(self) -> psutil.Process | None:
        """The process of `tritonserver`; None while it restarts."""
        for process in _of(psutil.Process(self.pid).children(recursive=True)):
            arguments = process.cmdline()
            if arguments and arguments[0].endswith("tritonserver"):
                return process
        return None


def _of(processes: list[psutil.Process]) -> Iterator[psutil.Process]:
    """Those that still exist."""
    for process in processes:
        try:
            process.cmdline()
        except psutil.NoSuchProcess:
            continue
        yield process
