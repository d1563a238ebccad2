"""Loads bundles into a running Triton, switches their versions, and replaces what failed.

A switch keeps the previous version loaded for a while: requests that began on it finish there, and
clients move to the new one when all parts of it are ready.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from inference.bundle.manifest import Bundle
from inference.errors import DeviceError, SetupError
from serving.load_model import load_model
from serving.settings.triton_settings import TritonSettings
from serving.tensorrt.plans import Plans, needs_plan, plan_folder, relative
from serving.triton.control import ModelControl, VersionPolicy, model_config
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.served import Refusal
from serving.triton.stubs import StubWatch

_LOAD_ATTEMPTS = 3
"""Of a model whose process ends each time; one that is killed is not at fault."""
_GRAPH_FIELDS = {"backend", "input", "output", "max_batch_size"}
"""Of a configuration: what the graph of a version must agree with."""
_PROCESS_ENDED = "' is not healthy"  # in Triton's reason

log = logging.getLogger(__name__)


class ModelLoader:
    """The models of one server. `load` may run in several threads.

    Args:
        settings: Of the server.
        stubs: The server's model processes.
        progress: Called with one line for each model loaded.
    """

    def __init__(
        self, settings: TritonSettings, stubs: StubWatch, progress: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._stubs = stubs
        self._progress = progress
        self._control: ModelControl | None = None
        self._runtime_files: RuntimeFiles | None = None
        folder = plan_folder(settings.repository, settings.plans)
        self.plans = Plans(folder, progress, settings.served_device.card or 0)
        self._files: dict[tuple[str, int], str] = {}  # of models that are loaded from a plan
        self._backends: frozenset[str] = frozenset()
        self._incarnations: Counter[str] = Counter()  # kept over restarts: clients compare it
        self.loading: set[tuple[str, int]] = set()
        """Versions for which Triton now starts a process."""

    def begin(self, control: ModelControl, files: RuntimeFiles) -> None:
        """Start over with a new server; see `BundleLoader.begin`."""
        self._control = control
        self._runtime_files = files
        self.loading.clear()
        self._backends = frozenset(each.name for each in files.backends.iterdir())
        self.plans.open()

    @property
    def control(self) -> ModelControl:
        """Model control of the started server."""
        assert self._control is not None, "the server is not started"
        return self._control

    @property
    def _own_files(self) -> RuntimeFiles:
        assert self._runtime_files is not None, "the server is not started"
        return self._runtime_files

    def prepare(self, bundle: Bundle) -> None:
        """Refuse what this machine or a gateway cannot serve; build plans that are missing."""
        self._settings.served_device.require(bundle)
        load_model(bundle)
        if not needs_plan(bundle):
            return
        if "tensorrt" not in self._backends:
            raise DeviceError(
                f"{bundle.manifest.name} version {bundle.version} is for TensorRT, and this Triton "
                "has no tensorrt backend: serve it in NVIDIA's container, or export it without "
                "--runtime tensorrt"
            )
        for model, plan in self.plans.ready(bundle).items():
            folder = self._settings.repository / model / str(bundle.version)
            self._files[model, bundle.version] = relative(plan, folder)

    def load(self, model: str, policy: VersionPolicy) -> None:
        """Load the versions of a policy; again if the process ends meanwhile.

        Raises:
            SetupError: Triton cannot.
        """
        began = time.monotonic()
        self._own_files.link_versions(self._settings.repository / model, policy.versions)
        attempts = 1
        while not self._load(model, policy):
            if attempts == _LOAD_ATTEMPTS:
                raise SetupError(f"the process of {model!r} ended {attempts} times while it loaded")
            log.warning("a process of model %s ended while it loaded; loading it again", model)
            attempts += 1
            self._incarnations[model] += 1
        if policy.previous is None:
            self._stubs.expect_only(model, policy.version)
        took_s = time.monotonic() - began
        self._progress(f"loaded {model} version {policy.version} in {took_s:.1f} s")

    def _load(self, model: str, policy: VersionPolicy) -> bool:
        """Load once; returns whether the process has not ended meanwhile.

        Raises:
            SetupError: Triton cannot, for another reason.
        """
        config = model_config(
            self._settings.repository / model,
            policy,
            self._incarnations[model],
            self._settings.parameters(),
            self._files.get((model, policy.version)),
            self._settings.served_device.card,
            self_check=self._settings.self_check,
        )
        before = self._stubs.running(model, policy.version)
        is_python = self._own_files.is_python(config["backend"])
        with self._own_files.noting_environments():
            try:
                if is_python:
                    self.loading.add((model, policy.version))
                self.control.load(model, config)
            except SetupError as error:
                if _PROCESS_ENDED in error.message:
                    return False
                links, folder = self._own_files.models, self._settings.repository
                raise type(error)(error.message.replace(f"{links}/", f"{folder}/")) from error
            finally:
                self.loading.discard((model, policy.version))
        return self._stubs.expect(model, policy.version, before) or not is_python

    def unload(self, model: str) -> None:
        """Unload all versions; running requests finish."""
        self._stubs.forget(model)
        self.control.unload(model)
        self._own_files.link_versions(self._settings.repository / model, ())

    def clear(self, model: str, missing: int, *, is_ready: bool) -> None:
        """Unload a model that Triton reports as ready though its process died."""
        if not is_ready:
            log.error("model %s is not loaded any more; loading it again", model)
            self._stubs.forget(model)
        elif missing:
            log.warning("model %s lost %d of its processes; loading it again", model, missing)
            self._stubs.dead += missing
            self._incarnations[model] += 1
            self.unload(model)

    def differences(self, bundle: Bundle, previous: Bundle) -> set[str]:
        """Fields in which the configurations differ of models that both versions have."""
        fields: set[str] = set()
        for model in set(bundle.models) & set(previous.models):
            new, old = (
                model_config(self._settings.repository / model, VersionPolicy(each.version))
                for each in (bundle, previous)
            )
            fields |= {each for each in new | old if new.get(each) != old.get(each)}
        return fields - {"version_policy"}


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
        self.refused: dict[str, Refusal] = {}
        """Versions that do not load, by bundle name."""
        self._healing: set[str] = set()

    def begin(self, control: ModelControl, files: RuntimeFiles) -> None:
        """Start over with a new server, which has nothing loaded.

        Args:
            files: The server's.
        """
        self._models.begin(control, files)
        self._switches.clear()
        self._retry_at_s.clear()
        self.serving = {}
        self.refused = {}
        self._healing.clear()

    def close(self) -> None:
        """End what builds plans."""
        self._models.plans.close()

    @property
    def models(self) -> tuple[str, ...]:
        """Triton models that are loaded, further parts included."""
        return tuple(sorted({m for each in self.serving.values() for m in each.bundle.models}))

    @property
    def loading(self) -> set[tuple[str, int]]:
        """Models and versions for which Triton now starts a process."""
        return set(self._models.loading)

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
                if bundle is candidates[0]:
                    self.refused[name] = Refusal(version=bundle.version, reason=error.message)
                if len(candidates) > 1:
                    log.error("%s version %d does not load: %s", name, bundle.version, error)
                continue
            self.serving[name] = Serving(bundle)
            self._retry_at_s.pop(name, None)
            if bundle is candidates[0]:
                self.refused.pop(name, None)
            return bundle
        self._retry_at_s[name] = self._clock() + _RETRY_S
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

    def switch(self, name: str, bundle: Bundle) -> None:
        """Serve another version of a loaded bundle; the previous one stays loaded for a while.

        Raises:
            SetupError: its device is not there, or it does not load, here or as a gateway will load
                it (tasks, tokenizer); the previous version is served as before.
        """
        try:
            self._switch(name, bundle)
        except SetupError as error:
            self.refused[name] = Refusal(version=bundle.version, reason=error.message)
            raise
        self.refused.pop(name, None)

    def _switch(self, name: str, bundle: Bundle) -> None:
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
        differences = self._models.differences(bundle, previous)
        # Versions share one configuration in Triton, and it names the plan. One version that loads
        # beside one whose graph the configuration contradicts has ended Triton 2.51 (signal 11).
        if needs_plan(bundle) or needs_plan(previous) or differences & _GRAPH_FIELDS:
            policy = policy.alone
        try:
            for model in bundle.models:
                self._models.load(model, policy if model in previous.models else policy.alone)
        except SetupError as error:
            if not differences or policy == policy.alone:
                raise
            # The previous one may not fit the rest of the newer one's configuration either.
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
        self.refused.pop(name, None)
        for model in {model for each in serving.bundles for model in each.models}:
            self._models.unload(model)

    def healings(
        self, others: Callable[[str], Sequence[Bundle]], healed: list[str]
    ) -> list[Callable[[], None]]:
        """The loads of what has lost a process or is not loaded any more, one for each bundle.

        They may run at once; until one has ended, its bundle is not among the next ones.

        Triton neither restarts a dead stub nor reports its model as not ready, and what the stub
        had accepted hangs. So the model is unloaded first, by which clients see at once that their
        requests are lost, then loaded with a new incarnation.

        Args:
            others: The complete versions of a bundle, in the order in which to try them if the
                served one does not load any more.
            healed: The models that were loaded again are added to it.
        """
        healing = set(self._healing)  # what ends now may not be ready in the answer below
        ready = self._models.control.ready()
        if ready is None:
            return []
        lost = self._stubs.missing()
        missing: Counter[str] = Counter()
        for (model, _), stubs in lost.items():
            missing[model] += stubs
        found: list[Callable[[], None]] = []
        for name, serving in self.serving.items():
            if name in healing or self._retry_at_s.get(name, 0.0) > self._clock():
                continue
            version, models = serving.bundle.version, serving.bundle.models
            heal: Callable[[], None]
            if all((m, version) not in lost and version in ready.get(m, ()) for m in models):
                previous = serving.previous
                old = [(m, previous.version) for m in previous.models] if previous else []
                if not (dead := sum(lost.get(each, 0) for each in old)):
                    continue
                heal = partial(self._drop_previous, name, dead)
            else:
                broken = {
                    m: (missing[m], bool(ready.get(m)))
                    for m in models
                    if m in missing or version not in ready.get(m, ())
                }
                heal = partial(self._reload, name, broken, others, healed)
            self._healing.add(name)
            found.append(partial(self._heal, name, heal))
        return found

    def _heal(self, name: str, heal: Callable[[], None]) -> None:
        try:
            heal()
        finally:
            self._healing.discard(name)

    def _drop_previous(self, name: str, dead: int) -> None:
        """Unload a previous version of which processes died, and leave the served one alone.

        Its requests end at their time limit: the only signal to clients, another incarnation, would
        end those of the served version too.
        """
        log.warning("the previous version of %s lost %d of its processes", name, dead)
        self._stubs.dead += dead
        self.retire(name)

    def _reload(
        self,
        name: str,
        broken: Mapping[str, tuple[int, bool]],
        others: Callable[[str], Sequence[Bundle]],
        healed: list[str],
    ) -> None:
        """Load the served version again, or the best other one.

        Args:
            broken: Its models to load; of each, how many processes it lost, and whether Triton
                reports it as ready.
        """
        bundle = self.serving[name].bundle
        for model, (missing, is_ready) in broken.items():
            self._models.clear(model, missing, is_ready=is_ready)
        try:
            for model in broken:
                self._models.load(model, VersionPolicy(bundle.version))
        except SetupError as error:
            log.error("%s version %d does not load: %s", name, bundle.version, error)
            candidates = [b for b in others(name) if b.version != bundle.version]
            if not candidates:
                self._retry_at_s[name] = self._clock() + _RETRY_S
                raise
            self.load(name, candidates)
            log.error("%s: version %d is served instead", name, self.serving[name].bundle.version)
        else:
            self.serving[name] = Serving(bundle)
        healed.extend(broken)
