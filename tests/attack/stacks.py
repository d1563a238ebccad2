"""The stacks that are attacked: with keys and all examples, and without keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.e2e.conftest import MODEL, Stack, running
from tests.e2e.text_bundles import copy_models


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


KEYS = {"mallory": "attack-" + "m" * 40, "alice": "attack-" + "a" * 40}
"""The attacker's, and another client's."""


@contextmanager
def keyed(
    repository: Path, folder: Path, workers: int = 1, models: Sequence[str] = ()
) -> Iterator[Target]:
    """A stack that requires keys; of these models, or all."""
    entries = (
        f'[[keys]]\nname = "{name}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        for name, key in KEYS.items()
    )
    file = folder / "keys.toml"
    file.write_text("\n".join(entries))
    if models:
        repository = copy_models(repository, folder, models)
    settings = {"TRIPTYCH_WORKERS": workers, "TRIPTYCH_API_KEYS": file}
    with running(repository, folder, **settings) as stack:
        yield _target(stack, workers, **KEYS)


@contextmanager
def keyless(repository: Path, folder: Path, workers: int = 1) -> Iterator[Target]:
    """A stack without keys that serves the translator alone, so that Triton restarts quickly."""
    with running(
        copy_models(repository, folder, (MODEL,)), folder, TRIPTYCH_WORKERS=workers
    ) as stack:
        yield _target(stack, workers)


def _target(
    stack: Stack, workers: int, mallory: str | None = None, alice: str | None = None
) -> Target:
    host, port = stack.url.removeprefix("http://").split(":")
    return Target(
        host=host,
        port=int(port),
        grpc_address=stack.grpc_address,
        pid=stack.process.pid,
        folder=stack.log.parent,
        key=mallory,
        other_key=alice,
        workers=workers,
        has_images=mallory is not None,
    )
