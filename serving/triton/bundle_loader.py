"""Loads bundles into a running Triton, switches their versions, and replaces what died.

A switch keeps the previous version loaded for a while: requests that began on it finish there, and
clients move to the new one when all parts of it are ready.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from inference.bundle.manifest import Bundle
from inference.errors import DeviceError, SetupError
from serving.settings.triton_settings import TritonSettings
from serving.tensorrt.plans import needs_plan
from serving.triton.control import ModelControl, VersionPolicy
from serving.triton.model_loader import ModelLoader
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.stubs import StubWatch

log = logging.getLogger(__name__)

NOTICED_S = 2.0
"""For gateways to notice a switch (four polls): a call of a version that is gone could end Triton
beside running ones (`serving.gateway.triton_client.stream_pool`)."""
_RETRY_S = 10.0
"""Between two attempts to load a bundle of which no version loads."""


@dataclass
class Serving:
    """A bundle in Triton: the version that is served, and the one before it while they overlap."""

    bundle: Bundle
    previous: Bundle | None = None
    retire_at_s: float = 0.0

    @property
    def bundles(self) -> list[Bundle]:
        """Both versions, or the one."""
        return [self.bundle] if self.previous is None else [self.bundle, self.previous]


class BundleLoader:
    """The bundles of one server. `load` may run in several threads, one per bundle.

    Args:
        settings: Of the server.
        stubs: The server's model processes.
        progress: Called with one line for each model loaded.
        clock: Seconds.
    """

    def __init__(
        self,
        settings: TritonSettings,
        stubs: StubWatch,
        progress: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._stubs = stubs
        self._clock = clock
        self._models = ModelLoader(settings, stubs, progress)
        self._switches: Counter[str] = Counter()
        self._retry_at_s: dict[str, float] = {}
        self.serving: dict[str, Serving] = {}
        """By bundle name."""

    def begin(self, control: ModelControl, files: RuntimeFiles) -> None:
        """Start over with a new server, which has nothing loaded.

        Args:
            files: The server's.
        """
        self._models.begin(control, files)
        self._switches.clear()
        self._retry_at_s.clear()
        self.serving = {}

    def close(self) -> None:
        """End what builds plans."""
        self._models.plans.close()

    @property
    def models(self) -> tuple[str, ...]:
        """Triton models that are loaded, further parts included."""
        return tuple(sorted({m for each in self.serving.values() for m in each.bundle.models}))

    def load(self, name: str, candidates: Sequence[Bundle]) -> Bundle:
        """Load the first version that loads, without overlap.

        Args:
            name: Of the bundle.
            candidates: Versions to try, best first; at least one.

        Raises:
            SetupError: none loads; the reason of the first.
        """
        failures: list[SetupError] = []
        for bundle in candidates:
            try:
                self._models.prepare(bundle)
                self._load_all(bundle)
            except SetupError as error:
                failures.append(error)
                if len(candidates) > 1:
                    log.error("%s version %d does not load: %s", name, bundle.version, error)
                continue
            self.serving[name] = Serving(bundle)
            self._retry_at_s.pop(name, None)
            return bundle
        self._retry_at_s[name] = self._clock() + _RETRY_S
        if name not in self.serving:
            self._models.leave_out(name)
        raise failures[0]

    def _load_all(self, bundle: Bundle) -> None:
        """Load every model of a bundle.

        Raises:
            DeviceError: Triton cannot load one for CUDA: mostly libraries or memory are missing.
            SetupError: Triton cannot load one.
        """
        try:
            for model in bundle.models:
                self._models.load(model, VersionPolicy(bundle.version))
        except SetupError as error:
            if bundle.manifest.device == "cuda":
                raise DeviceError(error.message) from error
            raise

    def refuse(self, failures: Sequence[SetupError]) -> None:
        """Raise the first failure if nothing is loaded; else what failed is left out."""
        if failures and not self.serving:
            raise failures[0]

    def switch(self, name: str, bundle: Bundle) -> None:
        """Serve another version of a loaded bundle; the previous one stays loaded for a while.

        Raises:
            SetupError: its device is not there, or it does not load, here or as a gateway will load
                it (tasks, tokenizer); the previous version is served as before.
        """
        self._models.prepare(bundle)
        previous = self.serving[name].bundle
        self._switches[name] += 1
        # A version that is still loaded from an earlier switch is unloaded first: clients recognise
        # the served version by the policy that it was loaded with.
        if self.serving[name].previous is not None:
            self.retire(name)
        try:
            self._load_both(name, bundle, previous)
        except SetupError:
            for model in previous.models:
                self._models.load(model, VersionPolicy(previous.version))
            for model in set(bundle.models) - set(previous.models):
                self._models.unload(model)
            raise
        retire_at_s = self._clock() + max(NOTICED_S, self._settings.retire_after)
        self.serving[name] = Serving(bundle, previous, retire_at_s)

    def _load_both(self, name: str, bundle: Bundle, previous: Bundle) -> None:
        """Load a version beside the previous one; part by part, the one clients look at last."""
        policy = VersionPolicy(bundle.version, previous.version, self._switches[name])
        if needs_plan(bundle) or needs_plan(previous):
            # Versions share one configuration in Triton, and it names the plan.
            policy = policy.alone
        try:
            for model in bundle.models:
                self._models.load(model, policy if model in previous.models else policy.alone)
        except SetupError as error:
            if not self._models.may_differ(bundle, previous):
                raise
            # Both versions share one configuration in Triton, which the previous one may not fit.
            log.info("%s: versions cannot overlap (%s); replacing at once", name, error)
            for model in bundle.models:
                self._models.load(model, policy.alone)

    def retire_due(self) -> None:
        """Unload previous versions whose time is up."""
        for name, serving in self.serving.items():
            if serving.previous is not None and self._clock() >= serving.retire_at_s:
                self.retire(name)

    def retire(self, name: str) -> None:
        """Unload a bundle's previous version; Triton lets its running requests finish.

        Raises:
            SetupError: Triton refused.
        """
        serving = self.serving[name]
        assert serving.previous is not None
        log.info("unloading %s version %d", name, serving.previous.version)
        for model in serving.bundle.models:
            self._stubs.expect_only(model, serving.bundle.version)
            self._models.load(model, VersionPolicy(serving.bundle.version))
        for model in set(serving.previous.models) - set(serving.bundle.models):
            self._models.unload(model)
        self.serving[name] = Serving(serving.bundle)

    def unload(self, name: str) -> None:
        """Unload a bundle with all its parts; running requests finish.

        Raises:
            SetupError: Triton refused.
        """
        serving = self.serving.pop(name)
        for model in {model for each in serving.bundles for model in each.models}:
            self._models.unload(model)

    def heal(self, others: Callable[[str], Sequence[Bundle]]) -> list[str]:
        """Load again what has lost a process or is not loaded any more.

        Triton neither restarts a dead stub nor reports its model as not ready, and what the stub
        had accepted hangs. So the model is unloaded first, by which clients see at once that their
        requests are lost, then loaded with a new incarnation.

        Args:
            others: The complete versions of a bundle, in the order in which to try them if the
                served one does not load any more.

        Returns:
            The models that were loaded again.

        Raises:
            SetupError: no version of a bundle loads; it is tried again later.
        """
        ready = self._models.control.ready()
        if ready is None:
            return []
        lost = self._stubs.missing()
        missing: Counter[str] = Counter()
        for (model, _), stubs in lost.items():
            missing[model] += stubs
        healed = []
        for name, serving in list(self.serving.items()):
            version = serving.bundle.version
            is_served_whole = all(
                (model, version) not in lost and version in ready.get(model, ())
                for model in serving.bundle.models
            )
            if is_served_whole:
                self._drop_broken_previous(name, lost)
                continue
            broken = [
                model
                for model in serving.bundle.models
                if model in missing or version not in ready.get(model, ())
            ]
            if self._retry_at_s.get(name, 0.0) > self._clock():
                continue
            for model in broken:
                self._models.clear(model, missing[model], bool(ready.get(model)))
            self._reload(name, serving, broken, others)
            healed += broken
        return healed

    def _drop_broken_previous(self, name: str, lost: Mapping[tuple[str, int], int]) -> None:
        """Unload a previous version of which a process died, and leave the served one alone.

        Its requests end at their time limit: the only signal to clients, another incarnation, would
        end those of the served version too.
        """
        previous = self.serving[name].previous
        if previous is None:
            return
        dead = sum(lost.get((model, previous.version), 0) for model in previous.models)
        if dead:
            log.warning("%s version %d lost %d of its processes", name, previous.version, dead)
            self._stubs.dead += dead
            self.retire(name)

    def _reload(
        self,
        name: str,
        serving: Serving,
        models: Iterable[str],
        others: Callable[[str], Sequence[Bundle]],
    ) -> None:
        """Load the served version again, or the best other one."""
        try:
            for model in models:
                self._models.load(model, VersionPolicy(serving.bundle.version))
        except SetupError as error:
            log.error("%s version %d does not load: %s", name, serving.bundle.version, error)
            candidates = [b for b in others(name) if b.version != serving.bundle.version]
            if not candidates:
                self._retry_at_s[name] = self._clock() + _RETRY_S
                raise
            self.load(name, candidates)
            log.error("%s: version %d is served instead", name, self.serving[name].bundle.version)
        else:
            self.serving[name] = Serving(serving.bundle)
