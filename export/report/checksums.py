"""SHA-256 of a bundle's files: what was verified is what is published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from export.parity.verify import bundle_path
from inference.bundle.manifest import Bundle


def checksums(bundle: Bundle) -> dict[str, str]:
    """`<model>/<file>` → SHA-256 of its graphs, their weights and its tokenizer files."""
    return {name: _sha256(path) for name, path in _files(bundle)}


def changed_files(bundle: Bundle, recorded: Mapping[str, str]) -> list[str]:
    """Names of the files that are not what was recorded, added and missing ones included."""
    found = checksums(bundle)
    return sorted(
        name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)
    )


def _files(bundle: Bundle) -> Iterator[tuple[str, Path]]:
    manifest = bundle.manifest
    for key, graph in manifest.graphs.items():
        path = bundle_path(bundle, key)
        for file in (path, path.with_name(f"{graph.file}.data")):
            if file.is_file():
                yield f"{manifest.parts.get(key, manifest.name)}/{file.name}", file
    for name in manifest.tokenizer.files.values() if manifest.tokenizer else ():
        yield f"{manifest.name}/{name}", bundle.path(name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
