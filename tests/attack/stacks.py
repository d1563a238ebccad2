"""The stacks that are attacked: with keys and all examples, and without keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.attack.target import Target
from tests.e2e.conftest import MODEL, Stack, running
from tests.e2e.repositories import copy_models

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
