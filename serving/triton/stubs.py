"""Who died: the python backend's processes, one or more a model, and which of them are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving.triton import process as processes
from serving.triton.installation import STUB

Living = dict[str, set[int]]
"""Pids by model, those of a version that is being unloaded included."""


class StubWatch:
    """Compares the stubs that a model had after loading with those that live now.

    Triton neither restarts a dead stub nor stops calling its model ready, so the operating system
    is asked. Models of a native backend have no stubs and are never missed.

    Args:
        living: Looks at the living stubs.
    """

    def __init__(self, living: Callable[[], Living]) -> None:
        self._living = living
        self._known: Living = {}

    def note(self, model: str) -> None:
        """Take the model's stubs of this moment as what it should have."""
        self._known[model] = self._living().get(model, set())

    @property
    def pids(self) -> set[int]:
        """The stubs that there should be."""
        return set().union(*self._known.values())

    def of(self, model: str) -> set[int]:
        """Those of one model that live."""
        return self._living().get(model, set())

    def forget(self, model: str) -> None:
        """Expect nothing of a model any more (it was unloaded)."""
        self._known.pop(model, None)

    def lost(self) -> dict[str, int]:
        """How many stubs each model is short of.

        A reload by someone else ends stubs too, but leaves as many new ones: those are noted.
        """
        living = self._living()
        short = {}
        for model, known in self._known.items():
            now = living.get(model, set())
            if len(now) >= len(known):
                self._known[model] = now if known - now else known
            else:
                short[model] = len(known) - len(now)
        return short


def living_stubs(server: int, repository: Path) -> Living:
    """The living stubs of a server by model: a stub is told the model file's path.

    Args:
        server: Pid of `tritonserver`.
        repository: The model repository exactly as the server was given it.
    """
    root = f"{repository}/"
    living: Living = {}
    for child in processes.children(server):
        if not child.arguments or Path(child.arguments[0]).name != STUB:
            continue
        for path in (text for text in child.arguments[1:] if text.startswith(root)):
            living.setdefault(path.removeprefix(root).split("/")[0], set()).add(child.pid)
    return living
