"""The python backend's processes (stubs), one or more per model, and which of them died."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path

from serving.processes.process_table import arguments_of, children
from serving.triton.installation import STUB

MODELS = "--model-repository="
Stubs = dict[tuple[str, int], set[int]]
"""Process ids by model and version."""


class StubWatch:
    """Compares the stubs that each model version had after loading with those that run now.

    Triton neither restarts a dead stub nor reports its model as not ready, so process ids decide.
    Models of a native backend have no stubs, so none is ever missing.

    Args:
        running: Lists the running stubs; slow.
        is_running: Whether a stub of this process id runs; quick.
    """

    def __init__(
        self, running: Callable[[], Stubs], is_running: Callable[[int], bool] = lambda pid: False
    ) -> None:
        self._running = running
        self._is_running = is_running
        self._expected: Stubs = {}
        self.dead = 0
        """Stubs that died; Triton keeps their shared memory until it stops."""

    def expect(self, model: str, version: int, before: Set[int] = frozenset()) -> bool:
        """Expect the stubs of a version that has just been loaded to keep running.

        Args:
            model: Of Triton.
            version: Of the model.
            before: Its stubs before the load; if it started others, these are being unloaded.

        Returns:
            Whether there are any.
        """
        now = self.running(model, version)
        kept = self._expected.get((model, version), set()) & now
        self._expected[model, version] = now - before or kept or now
        return bool(now)

    def expect_only(self, model: str, version: int) -> None:
        """Expect no stubs of other versions of a model any more."""
        for key in [key for key in self._expected if key[0] == model and key[1] != version]:
            del self._expected[key]

    def forget(self, model: str) -> None:
        """Expect no stubs of a model (it was unloaded)."""
        self.expect_only(model, 0)

    def clear(self) -> None:
        """Expect no stubs at all (the server was stopped)."""
        self._expected.clear()
        self.dead = 0

    @property
    def pids(self) -> set[int]:
        """The expected stubs."""
        return set().union(*self._expected.values())

    def running(self, model: str, version: int | None = None) -> set[int]:
        """The running stubs of one model, of one version or of all."""
        found = self._running().items()
        return set().union(
            *(pids for (name, v), pids in found if name == model and version in (None, v))
        )

    def missing(self) -> dict[tuple[str, int], int]:
        """Number of missing stubs, by model and version.

        A reload through Triton's API ends stubs too, but starts as many: those are expected then.
        """
        if all(map(self._is_running, self.pids)):
            return {}
        running = self._running()
        missing: dict[tuple[str, int], int] = {}
        for key, expected in list(self._expected.items()):  # other threads load models
            now = running.get(key, set())
            if len(now) >= len(expected):
                self._expected[key] = now if expected - now else expected
            else:
                missing[key] = len(expected) - len(now)
        return missing


def running_stubs(server: int) -> Stubs:
    """The running stubs of a server: their arguments contain `<models>/<model>/<version>/<file>`.

    Args:
        server: Process id of `tritonserver`; the folder of the models is in its own arguments.
    """
    own = [text for text in arguments_of(server) if text.startswith(MODELS)]
    root = f"{own[0].removeprefix(MODELS)}/" if own else ""
    stubs: Stubs = {}
    for pid, arguments in children(server).items():
        if not arguments or Path(arguments[0]).name != STUB:
            continue
        for path in (text for text in arguments[1:] if text.startswith(root)):
            model, version = path.removeprefix(root).split("/")[:2]
            stubs.setdefault((model, int(version)), set()).add(pid)
    return stubs
