"""Keeps the catalog at the versions that Triton serves.

The supervisor (`triptych triton`) alone decides about versions. The gateway shares only the
repository and Triton with it: it asks Triton which version is served and reads that version's
manifest from the repository.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from inference.bundle.repository import Repository
from inference.errors import BundleError
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.requests.catalog import Catalog
from serving.load_model import load_model
from serving.triton.served import FILE, read_record

log = logging.getLogger(__name__)

POLL_S = 0.5
_REPOSITORY_POLLS = 4
"""The repository is read at every so many polls of Triton."""


class VersionFollower:
    """Updates a catalog. Used on one event loop.

    Args:
        repository: Read-only; read in worker threads, one at a time.
        catalog: What is updated.
        read_version: The version of a model that Triton serves; None if it serves none.
        record: The supervisor's file; by default that of the repository.
    """

    def __init__(
        self,
        repository: Repository,
        catalog: Catalog,
        read_version: Callable[[str], Awaitable[int | None]],
        record: Path | None = None,
    ) -> None:
        self._record = record or repository.root / FILE
        self._repository = repository
        self._catalog = catalog
        self._read_version = read_version
        self._names: set[str] = set()
        self._numbers: dict[str, list[int]] = {}
        self._unreadable: dict[str, tuple[int, str]] = {}
        """Versions that Triton serves and the gateway cannot read, and why, by name."""

    async def run(self) -> None:
        """Follow Triton until cancelled."""
        while True:
            await self.update()
            for _ in range(_REPOSITORY_POLLS - 1):
                await asyncio.sleep(POLL_S)
                await self._update_versions()
            await asyncio.sleep(POLL_S)

    async def update(self) -> None:
        """Read the repository, then the served version of each bundle in it."""
        self._names = set(await asyncio.to_thread(self._repository.names))
        self._catalog.record = await asyncio.to_thread(read_record, self._record)
        await self._update_versions(with_unreadable=True)
        for model in self._catalog.models:
            await self._update_published(model)

    async def _update_versions(self, *, with_unreadable: bool = False) -> None:
        names = sorted(self._names | set(self._catalog.names))
        versions = await asyncio.gather(*map(self._read_version, names))
        for name, version in zip(names, versions, strict=True):
            if version is not None:
                is_unreadable = self._unreadable.get(name, (0, ""))[0] == version
                if with_unreadable or not is_unreadable:
                    await self._follow(name, version)
            elif name in self._catalog.names:
                refusal = self._catalog.record.refused.get(name)
                if refusal is not None and refusal.instead is None:
                    log.error("%s is not served: %s", name, refusal.reason)
                elif name in self._names:
                    continue  # it is being loaded
                log.info("model removed", extra={"model": name})
                self._catalog.remove(name)

    async def _follow(self, name: str, version: int) -> None:
        before = self._catalog.version(name)
        if version == before:
            return
        try:
            model, published = await asyncio.to_thread(self._load, name, version)
        except Exception as error:  # of a volume, say: the other models are followed
            problem = f"{type(error).__name__}: {error}"
            if isinstance(error, BundleError):
                problem = error.message
            if self._unreadable.get(name) != (version, problem):
                log.error("cannot serve %s version %d: %s", name, version, problem)
            self._unreadable[name] = version, problem
            return
        self._unreadable.pop(name, None)
        self._catalog.put(model, published)
        log.info("model switched", extra={"model": name, "before": before, "version": version})

    async def _update_published(self, model: LoadedModel) -> None:
        """Notice new versions in the repository, for `/v1/models`."""
        numbers = await asyncio.to_thread(self._repository.numbers, model.name)
        if numbers != self._numbers.get(model.name):
            self._numbers[model.name] = numbers
            published = await asyncio.to_thread(self._list_versions, model.name)
            if self._catalog.version(model.name) == model.manifest.version:
                self._catalog.put(model, published)

    def _load(self, name: str, version: int) -> tuple[LoadedModel, list[int]]:
        return load_model(self._repository.open(name, version)), self._list_versions(name)

    def _list_versions(self, name: str) -> list[int]:
        return [bundle.version for bundle in self._repository.complete(name)]
