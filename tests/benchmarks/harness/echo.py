"""A system that returns what it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.system import System


def load(system: System, model: str, cache: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What echoes; prints, as libraries do, which must not mix with the answers."""

    def run(work: dict[str, Any]) -> dict[str, Any]:
        print("a library's message")
        if work["value"] == "fail":
            raise ValueError("cannot echo")
        return {"value": work["value"], "model": model, "system": system.label}

    return run
