"""What an operator may change about the served versions: reload, rollback, and their results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from inference.errors import BundleError, SetupError

if TYPE_CHECKING:  # `triptych reload` sends a command, and runs no server
    from serving.triton.server import TritonServer

log = logging.getLogger(__name__)

_RETRY_S = 60.0
"""Until a bundle of which no version loads is tried again."""


class Command(BaseModel):
    """One request to a supervisor.

    Attributes:
        action: `reload` serves the newest version, `rollback` the one before the served one,
            `refresh` those published since the served one was chosen.
        name: Of the bundle; None: all of them.
    """

    action: Literal["reload", "rollback", "refresh"]
    name: str | None = None


class Outcome(BaseModel):
    """What became of one bundle.

    Attributes:
        name: Of the bundle.
        before: The version that was served; None: none.
        after: The version that is served now; None: none.
        problem: Why the wanted version is not served.
    """

    name: str
    before: int | None = None
    after: int | None = None
    problem: str | None = None


class VersionControl:
    """Runs commands on a server, from the thread that started it.

    Args:
        server: Started.
        clock: Seconds.
    """

    def __init__(self, server: TritonServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._failed: dict[str, tuple[list[int], float]] = {}
        """Versions of a bundle of which none loaded, and when to try them again."""

    def run(self, command: Command) -> list[Outcome]:
        """The outcome for the named bundle, or for each."""
        known = sorted({*self._server.repository.names(), *self._server.served})
        if command.name is not None and command.name not in known:
            names = ", ".join(known) or "none"
            problem = f"no such bundle in {self._server.settings.repository}; there are: {names}"
            return [Outcome(name=command.name, problem=problem)]
        run = {"reload": self._reload, "rollback": self._roll_back, "refresh": self._refresh}
        names_to_run = known if command.name is None else [command.name]
        return [run[command.action](name) for name in names_to_run]

    def refresh(self) -> None:
        """Load bundles that are not served yet; with `watch`, new versions of the others."""
        for name in self._server.repository.names():
            if name not in self._server.served:
                self._load_new(name)
            elif self._server.settings.watch:
                self._refresh(name)

    def _load_new(self, name: str) -> None:
        numbers, now_s = self._server.repository.numbers(name), self._clock()
        failed, retry_at_s = self._failed.get(name, ([], 0.0))
        if not self._server.repository.complete(name) or (numbers == failed and now_s < retry_at_s):
            return
        outcome = self._serve(name, None)
        if outcome.problem:
            self._failed[name] = numbers, now_s + _RETRY_S

    def _reload(self, name: str) -> Outcome:
        server, served = self._server, self._server.served.get(name)
        numbers = server.repository.numbers(name)
        if served is not None and not numbers:
            return self._unload(name, served)
        problem = None
        for number in numbers:
            if number == served:
                break
            try:
                server.repository.open(name, number)
            except BundleError as error:
                problem = problem or f"version {number} is not complete: {error}"
                continue
            outcome = self._serve(name, number)
            outcome.problem = outcome.problem or problem
            return outcome
        if served is None:
            problem = problem or "it has no version: run `triptych export`"
        return Outcome(name=name, before=served, after=served, problem=problem)

    def _refresh(self, name: str) -> Outcome:
        if self._server.is_published_since(name):
            return self._serve(name, None)
        served = self._server.served.get(name)
        return Outcome(name=name, before=served, after=served)

    def _roll_back(self, name: str) -> Outcome:
        served = self._server.served.get(name)
        complete = [bundle.version for bundle in self._server.repository.complete(name)]
        older = [version for version in complete if served is not None and version < served]
        if served is None or not older:
            what = "it is not served" if served is None else f"no version older than {served}"
            problem = f"{what}, nothing to go back to"
            return Outcome(name=name, before=served, after=served, problem=problem)
        return self._serve(name, older[0])

    def _serve(self, name: str, version: int | None) -> Outcome:
        before, problem = self._server.served.get(name), None
        try:
            self._server.load(name, version)
        except SetupError as error:
            problem = error.message
            log.error("%s: %s", name, problem)
        else:
            log.info("%s: serving version %s", name, self._server.served[name])
        after = self._server.served.get(name)
        return Outcome(name=name, before=before, after=after, problem=problem)

    def _unload(self, name: str, served: int) -> Outcome:
        problem = None
        try:
            self._server.unload(name)
        except SetupError as error:
            problem = error.message
        return Outcome(name=name, before=served, after=None, problem=problem)
