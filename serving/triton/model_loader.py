"""Loads single models into a running Triton: their configurations, plans and processes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from inference.bundle.manifest import Bundle
from inference.errors import DeviceError, SetupError
from serving.load_model import load_model
from serving.model_config import LEFT_OUT
from serving.settings.triton_settings import TritonSettings
from serving.tensorrt.plans import Plans, needs_plan, plan_folder, relative
from serving.triton.control import ModelControl, VersionPolicy, model_config
from serving.triton.runtime_files import RuntimeFiles
from serving.triton.stubs import StubWatch

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

    def begin(self, control: ModelControl, files: RuntimeFiles) -> None:
        """Start over with a new server; see `BundleLoader.begin`."""
        self._control = control
        self._runtime_files = files
        self._backends = frozenset(each.name for each in files.backends.iterdir())
        self.plans.open()

    @property
    def control(self) -> ModelControl:
        """The server's."""
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
        """Load the versions of a policy.

        Raises:
            SetupError: Triton cannot.
        """
        began = time.monotonic()
        config = model_config(
            self._settings.repository / model,
            policy,
            self._incarnations[model],
            self._settings.parameters(),
            self._files.get((model, policy.version)),
            self._settings.served_device.card,
        )
        self._own_files.link_versions(self._settings.repository / model, policy.versions)
        before = self._stubs.running(model, policy.version)
        with self._own_files.noting_environments():
            try:
                self.control.load(model, config)
            except SetupError as error:
                links, folder = self._own_files.models, self._settings.repository
                raise SetupError(error.message.replace(f"{links}/", f"{folder}/")) from error
        self._stubs.expect(model, policy.version, before)
        if policy.previous is None:
            self._stubs.expect_only(model, policy.version)
        took_s = time.monotonic() - began
        self._progress(f"loaded {model} version {policy.version} in {took_s:.1f} s")

    def leave_out(self, model: str) -> None:
        """Show gateways that no version of an unserved bundle loads (`LEFT_OUT`)."""
        policy = VersionPolicy(LEFT_OUT)
        self._own_files.link_versions(self._settings.repository / model, policy.versions)
        versions = {"specific": {"versions": policy.versions}}
        with contextlib.suppress(SetupError):
            self.control.load(model, {"name": model, "backend": "none", "version_policy": versions})

    def unload(self, model: str) -> None:
        """Unload all versions; running requests finish."""
        self._stubs.forget(model)
        self.control.unload(model)
        self._own_files.link_versions(self._settings.repository / model, ())

    def clear(self, model: str, missing: int, is_ready: bool) -> None:
        """Unload a model that Triton reports as ready though its process died."""
        if not is_ready:
            log.error("model %s is not loaded any more; loading it again", model)
            self._stubs.forget(model)
        elif missing:
            log.warning("model %s lost %d of its processes; loading it again", model, missing)
            self._stubs.dead += missing
            self._incarnations[model] += 1
            self.unload(model)

    def may_differ(self, bundle: Bundle, previous: Bundle) -> bool:
        """Whether the models of two versions may have different configurations."""
        root = self._settings.repository
        configs = [
            [model_config(root / m, VersionPolicy(each.version)) for m in each.models]
            for each in (bundle, previous)
        ]
        for config in (config for each in configs for config in each):
            del config["version_policy"]
        return configs[0] != configs[1]
