"""The hash of the code that an export runs: a bundle is exported again when that code has changed.

It covers the module of the checkpoint's architecture and the pipeline, with all that either imports
of this package, so that an edit of one model leaves the bundles of others up to date.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "export"
PIPELINE = "export.pipeline.build"
"""Imports every step from reading to publishing; no model's module, which the registry loads."""


def source_hash(architecture: str, root: Path | None = None) -> str:
    """SHA-256 over the source files of an architecture and of the pipeline.

    Args:
        architecture: The module that declares it.
        root: The folder that contains the package; this installation's by default.
    """
    digest = hashlib.sha256()
    for source in imported_sources(root or Path(__file__).parents[1], architecture, PIPELINE):
        digest.update(source)
    return digest.hexdigest()


def imported_sources(root: Path, *modules: str) -> list[bytes]:
    """The sources of modules and of all that they import of the package, by module's name."""
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    waiting = set(modules)
    while waiting:
        seen |= waiting
        files = ((name, _file(root, name)) for name in waiting)
        read = {name: path.read_bytes() for name, path in files if path is not None}
        found |= read
        waiting = {name for source in read.values() for name in _imports(source)} - seen
    assert found.keys() >= set(modules), f"no such module: {set(modules) - found.keys()}"
    return [found[name] for name in sorted(found)]


def _file(root: Path, module: str) -> Path | None:
    """A module's file; None for what is a name within a module, or a folder without one."""
    stem = root.joinpath(*module.split("."))
    candidates = (stem.with_suffix(".py"), stem / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imports(source: bytes) -> tuple[str, ...]:
    """Modules that a file may import of the package, each with the packages that it is in.

    Of `from a import b`, both `a` and `a.b`.
    """
    names = [name for node in ast.walk(ast.parse(source)) for name in _imported_by(node)]
    own = [name.split(".") for name in names if name.split(".")[0] == PACKAGE]
    return tuple(".".join(parts[:depth]) for parts in own for depth in range(1, len(parts) + 1))


def _imported_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
