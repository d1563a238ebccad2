"""No module imports itself through others, imports for type checking included."""

from __future__ import annotations

import grimp
import pytest

PACKAGES = ("inference", "serving", "export", "triptych")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def test_modules_form_no_cycle(graph: grimp.ImportGraph) -> None:
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert cycles(imports) == set()


def test_cycle_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set[str]()}
    assert cycles(imports) == {frozenset("abc")}


def cycles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules that reach each other."""
    reached = {name: reachable(name, imports) for name in imports}
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in imports
        if name in reached[name]
    }


def reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Modules that `start` imports, directly or through others."""
    found: set[str] = set()
    pending = list(imports[start])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += imports[name]
    return found
