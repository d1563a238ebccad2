"""Stored glossaries of the key that a request came with, for every protocol.

They are on disk: one file each, in a folder for each owner. The folder is all there is: several
processes may share it, and what one of them stores the others
read with the next request. A file is written under another name and moved into place, so that it is
always whole. Its first line is what a list shows, the second has the terms.

Owners are names of keys, not their hashes: a key can be replaced without losing its glossaries.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from pydantic import ValidationError

from inference.errors import (
    InternalError,
    InvalidRequest,
    SetupError,
    UnknownGlossary,
    UnknownRoute,
)
from inference.processing.terms import StoredTerms, TermTable, normalised
from serving.gateway.admission.auth import SINGLE, key_name
from triptych.glossaries.messages import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    ListGlossariesRequest,
)

log = logging.getLogger(__name__)

MAX_GLOSSARIES = 100
"""Of one owner."""
MAX_CHARACTERS = 1_000_000
"""Of the terms and renderings of one glossary."""
_KEPT = 16
"""Glossaries in memory."""
_SUFFIX = ".json"
_OWNER = "key-"  # a key may have the name `..`

Signature = tuple[int, ...]
Check = Callable[[str | None], None]
"""Called with the stored version (None: there is none) before it is changed; it may raise."""

_PRIVATE = 0o700
_DAMAGE = (ValueError, TypeError, KeyError, ValidationError)
"""Raised where the content of a file is not what `put` wrote."""


class GlossaryStore:
    """Glossaries by owner and name. Methods may be called from several threads.

    Args:
        folder: Made when the first glossary is stored, closed to other users.

    Raises:
        SetupError: it is not a folder.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise SetupError(f"{folder} is not a folder: glossaries are stored in one")
        self._folder = folder
        self._lock = threading.Lock()
        self._kept: LRUCache[Path, tuple[Signature, StoredTerms]] = LRUCache(_KEPT)

    def put(
        self, owner: str, glossary: Glossary, check: Check | None = None
    ) -> tuple[GlossaryInfo, str | None]:
        """Store a glossary, or replace the one of that name.

        Returns:
            With its version, which is None where terms are not stored as they were given.

        Raises:
            InvalidRequest: a term is blank or stands twice with different renderings, or there are
                too many glossaries or characters.
            InternalError: the folder cannot be written.
        """
        terms = _check_terms(glossary.terms)
        path = self._path(owner, glossary.name)
        info: dict[str, Any] = {
            "source": glossary.source,
            "target": glossary.target,
            "size": len(terms),
        }
        lines = "".join(json.dumps(part, ensure_ascii=False) + "\n" for part in (info, terms))
        content = lines.encode()
        try:
            self._folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            path.parent.mkdir(mode=_PRIVATE, exist_ok=True)
            with _lock(path.parent):
                if check is not None:
                    check(_version(path.read_bytes()) if path.exists() else None)
                if not path.exists() and len(_names(path.parent)) >= MAX_GLOSSARIES:
                    raise InvalidRequest(
                        f"a key has at most {MAX_GLOSSARIES} glossaries: delete one", field="name"
                    )
                modified = _replace(path, content)
        except OSError as error:
            log.exception("glossaries cannot be stored")
            raise InternalError(
                f"the gateway cannot write its folder of glossaries: {error.strerror}"
            ) from None
        made = GlossaryInfo(name=glossary.name, modified=modified, **info)
        return made, _version(content) if terms == glossary.terms else None

    def get(self, owner: str, name: str) -> tuple[Glossary, str]:
        """A glossary with its terms, and its version.

        Raises:
            UnknownGlossary: there is none of that name.
            InternalError: its file is damaged.
        """
        path = self._path(owner, name)
        with _reading(path):
            content = path.read_bytes()
            info, terms = content.decode("utf-8").split("\n", 1)
            head = json.loads(info)
            found = Glossary(
                name=name, terms=json.loads(terms), source=head["source"], target=head["target"]
            )
        return found, _version(content)

    def listing(self, owner: str) -> list[GlossaryInfo]:
        """The glossaries of an owner by name; damaged ones are left out and logged."""
        found = []
        folder = self._folder / f"{_OWNER}{owner}"
        for name in _names(folder):
            try:
                found.append(self.info(owner, name))
            except UnknownGlossary:  # deleted meanwhile
                continue
            except InternalError:
                log.exception("a glossary is damaged", extra={"file": str(folder / name)})
        return found

    def info(self, owner: str, name: str) -> GlossaryInfo:
        """What a list shows of a glossary.

        Raises:
            UnknownGlossary: there is none of that name.
            InternalError: its file is damaged.
        """
        path = self._path(owner, name)
        with _reading(path):
            return _info(path)

    def delete(self, owner: str, name: str, check: Check | None = None) -> GlossaryInfo:
        """Delete a glossary; what it was, with no terms if its file is damaged.

        Raises:
            UnknownGlossary: there is none of that name.
            InternalError: the folder cannot be written.
        """
        path = self._path(owner, name)
        with _reading(path.parent), _lock(path.parent):
            if check is not None:
                check(_version(path.read_bytes()))
            try:
                info = _info(path)
            except _DAMAGE:
                info = GlossaryInfo(name=name, size=0, modified=path.stat().st_mtime)
            path.unlink()
        return info

    def find_cached(self, owner: str, name: str) -> StoredTerms | None:
        """The terms, if they are in memory and the file has not changed since.

        Raises:
            UnknownGlossary: there is none of that name.
        """
        path = self._path(owner, name)
        signature = _signature(path)
        with self._lock:
            known = self._kept.get(path)
        return known[1] if known is not None and known[0] == signature else None

    def read(self, owner: str, name: str) -> StoredTerms:
        """The terms, read from the file and kept in memory.

        Raises:
            UnknownGlossary: there is none of that name.
            InternalError: its file is damaged.
        """
        path = self._path(owner, name)
        signature = _signature(path)  # before the content: at worst it is read once more
        glossary, _ = self.get(owner, name)
        terms = StoredTerms(TermTable(glossary.terms), glossary.source, glossary.target)
        with self._lock:
            self._kept[path] = signature, terms
        return terms

    def _path(self, owner: str, name: str) -> Path:
        return self._folder / f"{_OWNER}{owner}" / f"{name}{_SUFFIX}"


def _check_terms(terms: dict[str, str]) -> dict[str, str]:
    """Terms and renderings in one form each.

    Raises:
        InvalidRequest: one is blank, a term stands twice with different renderings, or all are
            too long.
    """
    found: dict[str, str] = {}
    for term, rendering in terms.items():
        key, value = normalised(term, "terms"), normalised(rendering, "terms")
        if not key or not value:
            raise InvalidRequest("terms holds an empty text", field="terms")
        if found.setdefault(key, value) != value:
            raise InvalidRequest(
                "terms holds one term twice, with different renderings", field="terms"
            )
    characters = sum(len(key) + len(value) for key, value in found.items())
    if characters > MAX_CHARACTERS:
        raise InvalidRequest(
            f"terms has {characters} characters, at most {MAX_CHARACTERS} are stored", field="terms"
        )
    return found


def _names(folder: Path) -> list[str]:
    """Names of the glossaries of a folder, in order."""
    files = folder.glob(f"*{_SUFFIX}")
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name[0] != ".")


def _version(content: bytes) -> str:
    """One name for one content."""
    return hashlib.sha256(content).hexdigest()[:32]


def _info(path: Path) -> GlossaryInfo:
    with path.open(encoding="utf-8") as file:
        modified = os.fstat(file.fileno()).st_mtime
        return GlossaryInfo(name=path.stem, modified=modified, **json.loads(file.readline()))


def _signature(path: Path) -> Signature:
    with _reading(path):
        found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _replace(path: Path, content: bytes) -> float:
    """Write a file whole; when it was modified."""
    written = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with written.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            modified = os.fstat(file.fileno()).st_mtime
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise
    return modified


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Writers of a folder take turns, those of other processes too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A file's faults as ours."""
    try:
        yield
    except FileNotFoundError:
        raise UnknownGlossary("no glossary of that name: GET /v1/glossaries lists them") from None
    except OSError as error:
        raise InternalError(
            f"the gateway cannot use its folder of glossaries: {error.strerror}"
        ) from error
    except _DAMAGE as error:
        raise InternalError(f"the glossary {path.stem!r} is damaged: put or delete it") from error


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

    async def put(
        self, glossary: Glossary, check: Check | None = None
    ) -> tuple[GlossaryInfo, str | None]:
        """Store a glossary, or replace the one of that name, after a check of the stored version.

        Raises:
            ServingError: see `GlossaryStore.put`; none are stored here.
        """
        return await asyncio.to_thread(self._store.put, _owner(), glossary, check)

    async def get(self, request: GlossaryName) -> tuple[Glossary, str]:
        """A glossary with its terms, and its version.

        Raises:
            ServingError: see `GlossaryStore.get`; none are stored here.
        """
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
            known = self._store.find_cached(_owner(), name)
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
