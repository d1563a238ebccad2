"""One Triton server with the bundles of a repository: loaded at its start, switched, healed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import TracebackType

from inference.bundle.manifest import Bundle
from inference.bundle.repository import Repository, VersionLock
from inference.errors import BundleError, SetupError
from serving.liveness.stall_detector import StallDetector
from serving.ports import host_port
from serving.settings.triton_settings import TritonSettings
from serving.triton.bundle_loader import BundleLoader
from serving.triton.control import ServerLostError
from serving.triton.lifetime import READY_TIMEOUT_S, Progress, ServerLifetime
from serving.triton.served import FILE, Choice, ServedVersions

log = logging.getLogger(__name__)

_LOADS_AT_ONCE = 4
_POLL_S = 0.1
_STATUS_PERIOD_S = 1.0
_MOST_UNSTARTED = 10
"""Readings of the status, none of which another load ended before, in which a model that loads may
have no process: Triton 2.51 waits for ever for one that was killed in its first moments."""
_LONGEST_GAP_S = 5.0
"""A longer time between two readings of the status means that this process was suspended."""


class TritonServer(ServerLifetime):
    """A `tritonserver` process in explicit model control, with its models.

    Use it as a context manager, or call `start` and `stop`. The server ends with the *thread* that
    called `start` (Linux ties the death signal to threads), so start it from one that stays.

    Args:
        settings: Repository, addresses, timeouts.
        progress: Called with one line for each step of a start.
    """

    def __init__(self, settings: TritonSettings, progress: Progress = log.info) -> None:
        super().__init__(settings, progress)
        self._is_serving = False
        self.repository = Repository(settings.repository)
        self._versions = ServedVersions(
            settings.state or settings.repository / FILE, self_check=settings.self_check
        )
        self._lock = VersionLock()
        self._loader = BundleLoader(settings, self._stubs, progress)
        self._last_served: dict[str, int] = {}

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def models(self) -> tuple[str, ...]:
        """Triton models that were loaded, further parts included."""
        return self._loader.models if self._is_serving else ()

    def start(self, *, strict: bool = True) -> None:
        """Start the server and load every bundle of the repository.

        If `strict`, a server that ends while it loads, or does not go on, is started once more.

        After a restart each bundle is loaded at the version that it had; otherwise at the recorded
        one, or the newest if one has been published since. A version that does not load is replaced
        by the newest other one that does.

        Args:
            strict: Raise if no bundle loads; one that does not is left out while others do.

        Raises:
            SetupError: no Triton, a port in use, the server ended or was not ready in time, or
                (`strict`) no bundle loads, with Triton's reason. Nothing is left running.
        """
        try:
            self._start(strict=strict)
        except ServerLostError as error:
            if not strict:
                raise
            log.error("starting Triton again: %s", error)
            self._start(strict=strict)

    def _start(self, *, strict: bool) -> None:
        began = time.monotonic()
        bundles = {name: self._in_order(name) for name in self.repository.names()}
        try:
            self._loader.begin(*self._launch())
            self._versions.set_refused({})
            self._await_live(began + READY_TIMEOUT_S)
            address = host_port(self.settings.host, self._ports["gRPC"])
            self._progress(f"Triton listens on {address} (gRPC)")
            failures = self._run_all(
                [
                    partial(self._loader.load, name, found)
                    for name, found in bundles.items()
                    if found
                ]
            )
            for failure in failures:
                log.error("%s", failure)
            self._record_refused()
            if strict and failures and not self._loader.serving:
                raise failures[0]
            for name in self._loader.serving:
                self._record(name)
            self._is_serving = True
            took = time.monotonic() - began
            self._progress(f"Triton ready with {len(self.models)} models in {took:.1f} s")
        except BaseException:  # a signal's too, at any moment until the caller has the server
            self.stop()
            raise

    def stop(self, *, at_once: bool = False) -> None:
        self._loader.close()
        super().stop(at_once=at_once)
        self._is_serving = False

    @property
    def served(self) -> dict[str, int]:
        """The version that is served, by bundle."""
        return {name: each.bundle.version for name, each in self._loader.serving.items()}

    def load(self, name: str, version: int | None = None) -> int:
        """Serve a bundle at its newest complete version, or at a given one.

        Returns:
            The version that is now served.

        Raises:
            SetupError: no such complete version, or Triton cannot load it; the version that was
                served before still is.
        """
        if version is not None:
            bundle = self.repository.open(name, version)
        elif complete := self.repository.complete(name):
            bundle = complete[0]
        else:
            raise BundleError(f"{self.settings.repository / name} has no complete version")
        try:
            if self.served.get(name, bundle.version) == bundle.version:
                self._run_one(partial(self._loader.load, name, [bundle]))
            else:
                self._run_one(partial(self._loader.switch, name, bundle))
        finally:
            self._record_refused()
            if name in self.served:
                self._record(name)
        return bundle.version

    def keep_no_record(self) -> None:
        """Leave the record of served versions to the repository's first supervisor."""
        self._versions.is_ours = False

    def keep_record(self) -> None:
        """Record what this server serves: the repository's first supervisor has ended."""
        self._versions.take_over()

    def is_published_since(self, name: str) -> bool:
        """Whether a version has been published since the served one was chosen."""
        choice, complete = self._versions.get(name), self.repository.complete(name)
        return bool(complete) and (choice is None or complete[0].version > choice.newest)

    def unload(self, name: str) -> None:
        """Stop serving a bundle.

        Raises:
            SetupError: Triton refused.
        """
        try:
            self._run_one(partial(self._loader.unload, name))
        finally:
            self._record_refused()
            self._versions.set(name, None)
            self._last_served.pop(name, None)
            self._lock.hold(self._folders())

    def heal(self) -> list[str]:
        """Load again what lost a process or was unloaded; unload versions that are not needed.

        What is lost meanwhile is loaded too, beside the others, as long as this takes seconds.

        Returns:
            The models that were loaded again.

        Raises:
            SetupError: the server ended, or no version of a bundle loads.
        """
        healed: list[str] = []
        until_s = time.monotonic() + _LONGEST_GAP_S

        def further() -> Sequence[Callable[[], object]]:
            if time.monotonic() > until_s or not self.is_missing_stubs:
                return ()
            return self._loader.healings(self._in_order, healed)

        self.free_memory()
        try:
            for failure in self._run_all(self._loader.healings(self._in_order, healed), further):
                raise failure
            self._run_one(self._loader.retire_due)
        finally:
            self._record_refused()
            for name in self.served if healed else ():
                self._record(name)
            self._lock.hold(self._folders())
        return healed

    def _run_all(
        self,
        loads: Sequence[Callable[[], object]],
        further: Callable[[], Sequence[Callable[[], object]]] = lambda: (),
    ) -> list[SetupError]:
        """Load several bundles at once, while the server lives and responds.

        Args:
            further: Loads that have become necessary meanwhile.

        Returns:
            Why those that failed did.

        Raises:
            ServerLostError: the server ended or does not respond; it is stopped.
        """
        failures, stalls = [], StallDetector(longest_gap_s=_LONGEST_GAP_S)
        unstarted: Counter[tuple[str, int]] = Counter()
        with ThreadPoolExecutor(_LOADS_AT_ONCE) as pool:
            running = {pool.submit(load) for load in loads}
            try:
                while running:
                    done, running = wait(running, _POLL_S, return_when=FIRST_COMPLETED)
                    running |= {pool.submit(load) for load in further()}
                    if done:  # a busy machine starts the others' processes late
                        unstarted.clear()
                    for load in done:
                        try:
                            load.result()
                        except SetupError as error:
                            failures.append(error)
                    if not self.is_alive:
                        raise ServerLostError(
                            f"tritonserver ended while loading: {self._last_error}"
                        )
                    if running and stalls.read_s_ago() >= _STATUS_PERIOD_S:
                        status = self._require_control().status()
                        stalls.update(status.engines if status else None)
                        if stalls.unresponsive_s > self.settings.stuck_after:
                            raise ServerLostError("tritonserver does not respond while loading")
                        missing = self._loader.loading - self._running_stubs().keys()
                        unstarted = Counter({each: unstarted[each] + 1 for each in missing})
                        if stuck := [each for each in missing if unstarted[each] > _MOST_UNSTARTED]:
                            raise ServerLostError(
                                f"Triton waits for a process that ended: {stuck[0]}"
                            )
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                # The models' processes hold a dead server's connections open, so they go too. A
                # signal during a healing leaves the other models their time.
                self.stop(at_once=isinstance(error, Exception) or not self._is_serving)
                raise
        return failures

    def _run_one(self, load: Callable[[], object]) -> None:
        """Runs one load; raises the error that it failed with."""
        for failure in self._run_all([load]):
            raise failure

    def _in_order(self, name: str) -> list[Bundle]:
        """A bundle's complete versions, in the order in which to try them."""
        complete = self._versions.in_order(name, self.repository.complete(name))
        return sorted(complete, key=lambda bundle: bundle.version != self._last_served.get(name))

    def _record(self, name: str) -> None:
        version = self._last_served[name] = self.served[name]
        published = [bundle.version for bundle in self.repository.complete(name)]
        self._versions.set(name, Choice(version=version, newest=max([version, *published])))
        self._lock.hold(self._folders())

    def _record_refused(self) -> None:
        served = self.served
        self._versions.set_refused(
            {
                name: each.model_copy(update={"instead": served.get(name)})
                for name, each in self._loader.refused.items()
            }
        )

    def _folders(self) -> set[Path]:
        return {
            each.folder for serving in self._loader.serving.values() for each in serving.bundles
        }
