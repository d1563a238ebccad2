"""Copies bundles between a folder and object storage; every file is checked by its SHA-256.

Order makes both directions safe to interrupt: a manifest is written after the files that it names,
and the list of sums after all files, so neither side reads a bundle that is not complete.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url

from inference.bundle.manifest import MANIFEST
from inference.bundle.repository import Repository
from inference.errors import SetupError

SUMS = "SHA256SUMS"
"""Its name beside the bundles; `sha256sum -c SHA256SUMS` checks a copy that any tool made."""
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")


def parse(text: str) -> dict[str, str]:
    """Relative path of each file → its SHA-256.

    Raises:
        SetupError: a line is something else, or a path leaves the folder.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise SetupError(f"{SUMS}, line {number}: expected a SHA-256, two spaces and a path")
        path = PurePosixPath(match[2])
        if path.is_absolute() or ".." in path.parts or "\\" in match[2] or "\0" in match[2]:
            raise SetupError(f"{SUMS}, line {number}: the path leaves the repository")
        found[str(path)] = match[1]
    return found


def render(sums: Mapping[str, str]) -> str:
    """The text of a list, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONFIG = "config.pbtxt"
_GRAPHS = (".onnx", ".onnx.data")
_TRANSFERS = 8
"""Files at a time: enough for a network, and few enough for an init container's memory."""


@dataclass(frozen=True)
class Transferred:
    """What was copied.

    Attributes:
        copied: Files that were sent or received.
        kept: Files that the other side had already.
        digest: SHA-256 of the list of sums, which names the whole repository.
    """

    copied: int
    kept: int
    digest: str


def open_store(url: str) -> ObjectStore:
    """Object storage below a URL: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`.

    Credentials, region and endpoint are those of the environment (`AWS_…`).

    Raises:
        SetupError: the URL or a setting is not understood.
    """
    try:
        if url.startswith("file://"):
            return from_url(url, mkdir=True)
        return from_url(url)
    except (BaseError, ValueError) as error:
        raise SetupError(f"cannot open the object storage: {_one_line(error)}") from None


def push(store: ObjectStore, folder: Path, names: Collection[str] = ()) -> Transferred:
    """Store the complete versions of bundles; other stored bundles stay as they are.

    Args:
        store: Where to.
        folder: The model repository.
        names: Bundles; by default all, and stored ones that the repository lacks are dropped.

    Raises:
        SetupError: no such bundle, or the storage failed.
    """
    repository = Repository(folder)
    found = repository.names()
    if missing := set(names) - set(found):
        raise SetupError(f"{folder} has no bundle {', '.join(sorted(missing))}")
    local = {path: sha256(folder / path) for path in _files(repository, names or found)}
    with _failures("push"):
        stored = _read_sums(store)[0]
        changed = [path for path, digest in local.items() if stored.get(path) != digest]
        _each(lambda path: obstore.put(store, path, folder / path), changed)
        text = render({**(stored if names else {}), **local}).encode()
        obstore.put(store, SUMS, text)
    return Transferred(len(changed), len(local) - len(changed), hashlib.sha256(text).hexdigest())


def pull(
    store: ObjectStore,
    folder: Path,
    names: Collection[str] = (),
    *,
    with_graphs: bool = True,
    digest: str | None = None,
) -> Transferred:
    """Bring bundles into a folder; files that are there with the right sum are kept.

    Args:
        store: Where from.
        folder: The model repository; made if missing.
        names: Bundles; by default all.
        with_graphs: Otherwise files of graphs are left empty, for gateways, which read none.
        digest: What the list of sums must have as its SHA-256; None: any.

    Raises:
        SetupError: nothing is stored, no such bundle, another sum, or the storage failed.
    """
    with _failures("pull"):
        sums, found = _read_sums(store)
        if not sums:
            raise SetupError(f"the object storage has no {SUMS} there: run `triptych push` first")
        if digest is not None and found != digest.lower():
            raise SetupError(f"{SUMS} has the SHA-256 {found}, expected {digest}: it was changed")
        wanted = _select(store, sums, names) if names else sums
        graphs = set() if with_graphs else {path for path in wanted if path.endswith(_GRAPHS)}
        for path in graphs:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        due = [
            path for path in wanted if path not in graphs and not _has(folder / path, sums[path])
        ]
        for is_manifest in (False, True):
            each = [path for path in due if (PurePosixPath(path).name == MANIFEST) is is_manifest]
            _each(lambda path: _receive(store, path, folder / path, sums[path]), each)
    return Transferred(len(due), len(wanted) - len(due) - len(graphs), found)


def _files(repository: Repository, names: Iterable[str]) -> Iterator[str]:
    """Paths of the files of complete versions, and of the configurations of their models."""
    seen: set[str] = set()
    for name in names:
        for bundle in repository.complete(name):
            for model in bundle.models:
                parent = repository.root / model
                files = [*sorted((parent / bundle.folder.name).rglob("*")), parent / CONFIG]
                seen |= {str(path.relative_to(repository.root)) for path in files if path.is_file()}
    yield from sorted(seen)


def _read_sums(store: ObjectStore) -> tuple[dict[str, str], str]:
    """The stored list of sums and its own SHA-256; an empty one where there is none."""
    try:
        content = bytes(obstore.get(store, SUMS).bytes())
    except (NotFoundError, FileNotFoundError):
        return {}, ""
    try:
        return parse(content.decode()), hashlib.sha256(content).hexdigest()
    except UnicodeDecodeError:
        raise SetupError(f"{SUMS} is not text") from None


def _select(store: ObjectStore, sums: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The files of some bundles: of all models that their manifests name."""
    models: set[str] = set()
    for name in names:
        manifests = [path for path in sums if PurePosixPath(path).match(f"{name}/*/{MANIFEST}")]
        if not manifests:
            raise SetupError(f"no bundle {name} is stored there")
        for path in manifests:
            content = bytes(obstore.get(store, path).bytes())
            _check(hashlib.sha256(content).hexdigest(), path, sums[path])
            models |= {name, *json.loads(content).get("parts", {}).values()}
    return {path: sums[path] for path in sums if PurePosixPath(path).parts[0] in models}


def _receive(store: ObjectStore, path: str, target: Path, digest: str) -> None:
    """One file, under its name only when it is complete and right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    actual = hashlib.sha256()
    try:
        with partial.open("wb") as file:
            for chunk in obstore.get(store, path).stream():
                actual.update(chunk)
                file.write(chunk)
        _check(actual.hexdigest(), path, digest)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _check(actual: str, path: str, digest: str) -> None:
    if actual != digest:
        raise SetupError(
            f"{path} has the SHA-256 {actual}, {SUMS} has {digest}: push it again, or wait for a "
            "push that runs"
        )


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path) == digest


def _each(work: Callable[[str], object], paths: Collection[str]) -> None:
    """Run work on several paths at a time; the first failure is raised."""
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        for _ in pool.map(work, paths):
            pass


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Errors of the storage and of the disk as one line."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise SetupError(f"{what} failed: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
