"""Public methods have docstrings, those that inherit one apart.

Ruff demands all other docstrings; its rule for methods knows no base classes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("*_pb2.py", "*_pb2_grpc.py")
FOLDERS = sorted(
    {path.relative_to(ROOT).parts[0] for path in ROOT.glob("[!.]*/**/*.py")} - {"tests", "shared"}
)
Method = ast.FunctionDef | ast.AsyncFunctionDef


def classes(folder: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Public classes that are not inside a function."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(path.match(pattern) for pattern in GENERATED):
            continue
        bodies: list[list[ast.stmt]] = [ast.parse(path.read_text(encoding="utf-8")).body]
        for body in bodies:
            found = [each for each in body if isinstance(each, ast.ClassDef)]
            yield from ((path, each) for each in found if not each.name.startswith("_"))
            bodies.extend(each.body for each in found)


def methods(found: ast.ClassDef) -> list[Method]:
    """Public methods; `@x.setter` and `@overload` share a docstring with another definition."""
    return [
        each
        for each in found.body
        if isinstance(each, Method)
        and not each.name.startswith("_")
        and not any(
            ast.unparse(mark).endswith((".setter", "overload")) for mark in each.decorator_list
        )
    ]


def bases(found: ast.ClassDef) -> set[str]:
    """Names of the base classes, without modules and type parameters."""
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in found.bases}


def inherited(everything: list[ast.ClassDef]) -> dict[str, set[str]]:
    """Class → its documented methods and those of its bases; `Protocol` → those of all protocols.

    Classes implement protocols without being derived from them.
    """
    documented: dict[str, set[str]] = defaultdict(set)
    for found in everything:
        documented[found.name] |= {each.name for each in methods(found) if ast.get_docstring(each)}
    protocols = [found.name for found in everything if "Protocol" in bases(found)]
    documented["Protocol"] = set().union(*(documented[name] for name in protocols))
    changed = True
    while changed:
        changed = False
        for found in everything:
            names = set().union(*(documented[base] for base in bases(found)))
            changed = changed or not names <= documented[found.name]
            documented[found.name] |= names
    return documented


DOCUMENTED = inherited([found for folder in FOLDERS for _, found in classes(folder)])


@pytest.mark.parametrize("folder", FOLDERS)
def test_public_methods_have_or_inherit_docstrings(folder: str) -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{each.lineno}: {found.name}.{each.name}"
        for path, found in classes(folder)
        for each in methods(found)
        if not ast.get_docstring(each)
        and each.name not in DOCUMENTED[found.name] | DOCUMENTED["Protocol"]
    ]
    assert not missing, "\n".join(missing)
