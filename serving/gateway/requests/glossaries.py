"""Glossaries of the key that a request came with, for every protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path

from inference.errors import UnknownGlossary, UnknownRoute
from inference.processing.terms import StoredTerms
from serving.gateway.admission.auth import SINGLE, key_name
from serving.gateway.requests.glossary_store import Check, GlossaryStore
from triptych.glossaries.messages import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    ListGlossariesRequest,
)


class Glossaries:
    """The glossaries of each key. Files are used in asyncio's threads, not in those of the tasks.

    A glossary belongs to the name of the key that it was put with; other keys do not see it. Where
    no key is required, all callers share those of the gateway's single key.

    Args:
        folder: Where they are stored; None: nowhere.

    Raises:
        SetupError: `folder` is not a folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._of_folder = None if folder is None else GlossaryStore(folder)

    async def put(self, glossary: Glossary) -> GlossaryInfo:
        """Store a glossary, or replace the one of that name.

        Raises:
            ServingError: see `GlossaryStore.put`; none are stored here.
        """
        info, _ = await self.put_if(glossary)
        return info

    async def put_if(
        self, glossary: Glossary, check: Check | None = None
    ) -> tuple[GlossaryInfo, str | None]:
        """Likewise, with a check of the stored version; see `GlossaryStore.put`."""
        return await asyncio.to_thread(self._store.put, _owner(), glossary, check)

    async def get(self, request: GlossaryName) -> Glossary:
        """A glossary with its terms.

        Raises:
            ServingError: see `GlossaryStore.get`; none are stored here.
        """
        found, _ = await self.get_version(request)
        return found

    async def get_version(self, request: GlossaryName) -> tuple[Glossary, str]:
        """Likewise, with its version."""
        return await asyncio.to_thread(self._store.get, _owner(), request.name)

    async def listing(self, request: ListGlossariesRequest) -> GlossaryList:
        """All glossaries, without their terms; none where none are stored."""
        if self._of_folder is None:
            return GlossaryList(data=[])
        return GlossaryList(data=await asyncio.to_thread(self._store.listing, _owner()))

    async def delete(self, request: GlossaryName, check: Check | None = None) -> GlossaryInfo:
        """Delete a glossary, after a check of the stored version.

        Raises:
            ServingError: see `GlossaryStore.delete`; none are stored here.
        """
        return await asyncio.to_thread(self._store.delete, _owner(), request.name, check)

    async def terms(self, name: str) -> StoredTerms:
        """The terms of a glossary.

        Raises:
            ServingError: see `GlossaryStore.read`; none are stored here.
        """
        try:
            known = self._store.kept(_owner(), name)
            if known is None:
                known = await asyncio.to_thread(self._store.read, _owner(), name)
        except UnknownGlossary as error:
            error.field = "glossary_name"
            raise
        return known

    @property
    def _store(self) -> GlossaryStore:
        if self._of_folder is None:
            raise UnknownRoute(
                "this gateway stores no glossaries: start it with --glossaries FOLDER"
            )
        return self._of_folder


def _owner() -> str:
    return key_name() or SINGLE
