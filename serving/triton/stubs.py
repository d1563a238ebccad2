"""The python backend's processes (stubs), one or more per model, and which of them died."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path

from serving.triton import process as processes
from serving.triton.installation import STUB

Living = dict[str, set[int]]
"""Process ids by model, those of a version that is being unloaded included."""


class StubWatch:
    """Compares the stubs that a model had after loading with those that run now.

    Triton neither restarts a dead stub nor reports its model as not ready, so process ids decide.
    Models of a native backend have no stubs, so none is ever missing.

    Args:
        living: Lists the running stubs.
    """

    def __init__(self, living: Callable[[], Living]) -> None:
        self._living = living
        self._known: Living = {}

    def expect(self, model: str, before: Set[int] = frozenset()) -> None:
        """Expect the model to keep the stubs that its load has started.

        Args:
            before: Its stubs before the load. They end some time after it, which is no loss; if
                there are no others, Triton has kept them, because nothing had changed.
        """
        living = self._living().get(model, set())
        self._known[model] = living - before or living

    @property
    def pids(self) -> set[int]:
        """The expected stubs."""
        return set().union(*self._known.values())

    def running(self, model: str) -> set[int]:
        """The running stubs of one model."""
        return self._living().get(model, set())

    def forget(self, model: str) -> None:
        """Expect no stubs of a model (it was unloaded)."""
        self._known.pop(model, None)

    def missing(self) -> dict[str, int]:
        """Number of missing stubs, by model.

        A reload through Triton's API ends stubs too, but starts as many: those are expected then.
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
    """The running stubs of a server by model: a stub's arguments contain the model file's path.

    Args:
        server: Pid of `tritonserver`.
        repository: The model repository, exactly as in the server's own arguments.
    """
    root = f"{repository}/"
    living: Living = {}
    for child in processes.children(server):
        if not child.arguments or Path(child.arguments[0]).name != STUB:
            continue
        for path in (text for text in child.arguments[1:] if text.startswith(root)):
            living.setdefault(path.removeprefix(root).split("/")[0], set()).add(child.pid)
    return living
