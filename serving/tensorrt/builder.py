"""Plans by TensorRT's own parser and builder, for one GPU; in a process of its own (`__main__`).

A process, because a build takes minutes and gigabytes of the GPU's memory, all of which its end
returns, and because TensorRT may end it.
"""

from __future__ import annotations

import ctypes
import importlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inference.bundle.manifest import Bundle, Profile
from inference.errors import SetupError
from serving.tensorrt.plan_folder import PlanFolder, PlanKey, graph_hash

Progress = Callable[[str], None]

_EVERY_S = 5.0
_INCONSISTENT = "not self-consistent"
"""In the warning for a profile whose largest shape the graph cannot have; the builder goes on."""
_PACKAGES = ("tensorrt", "tensorrt_bindings")
"""The second is what the wheel `tensorrt-cu13-bindings` installs, for libraries of the system."""
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def tensorrt() -> Any:
    """The package.

    Raises:
        SetupError: it is not installed, or its libraries do not load.
    """
    reasons = []
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reasons.append(str(error))
    raise SetupError(
        f"TensorRT's Python package is missing ({reasons[-1]}): build plans in the serving image "
        "(docker/README.md), or install tensorrt-cu13-bindings of its TensorRT's version"
    )


def compute_capability(index: int = 0) -> str:
    """`9.0` for an H100, from the driver.

    Raises:
        SetupError: there is no driver or no such GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SetupError(f"no GPU: NVIDIA's driver is missing ({error})") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    if status:
        raise SetupError(f"GPU {index} cannot be used: the driver returns error {status}")
    return f"{major.value}.{minor.value}"


@dataclass(frozen=True)
class Target:
    """What a plan is built with.

    Attributes:
        library: TensorRT's Python package.
        configure: Called with the builder's configuration, to build for another GPU than this
            machine's where the library can.
    """

    library: Any
    configure: Callable[[Any], None] = lambda config: None


def build_plan(
    target: Target,
    file: Path,
    profiles: tuple[Profile, ...],
    timings: bytes = b"",
    progress: Progress = lambda line: None,
) -> tuple[bytes, bytes]:
    """The serialised plan, and what its kernels' timings were.

    Types are those of the file: the network is strongly typed.

    Args:
        profiles: At least one.
        timings: Of earlier builds; those of other versions or GPUs are ignored.
        progress: Called with a line every few seconds.

    Raises:
        SetupError: an operator, type or shape that TensorRT does not take, with its reason.
    """
    trt = target.library
    messages = _messages(trt)
    messages.clear()
    builder = trt.Builder(messages)
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, messages)
    if not parser.parse_from_file(str(file)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        listed = [f"{each.node_operator()} {each.node_name()}: {each.desc()}" for each in errors]
        raise SetupError(f"TensorRT cannot read {file.name}: {_one_line('; '.join(listed))}")
    config = builder.create_builder_config()
    for profile in profiles:
        _add_profile(builder, config, profile, file.name)
    cache = _use_timings(config, timings)
    _report_progress(trt, config, progress)
    target.configure(config)
    plan = builder.build_serialized_network(network, config)
    if inconsistent := [line for line in messages.warnings if _INCONSISTENT in line]:
        raise SetupError(
            f"a profile of {file.name} has shapes that its graph cannot have: "
            f"{_one_line(inconsistent[0])}"
        )
    if plan is None:
        raise SetupError(f"TensorRT cannot build {file.name}: {_one_line(messages.reason)}")
    return bytes(plan), timings if cache is None else bytes(cache.serialize())


@cache
def _messages(trt: Any) -> Any:
    """The process's one logger, which keeps errors and warnings: TensorRT holds on to the first."""

    class Messages(trt.ILogger):  # type: ignore[misc]  # the library is given at run time
        """TensorRT calls `log` from the thread that builds."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.clear()

        def clear(self) -> None:
            """Forget the messages of another build."""
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Keep a message."""
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(message)
            elif severity == trt.ILogger.Severity.WARNING:
                self.warnings.append(message)

        @property
        def reason(self) -> str:
            """The first error: the others follow from it."""
            return (self.errors or self.warnings or ["no reason was given"])[0]

    return Messages()


def _strongly_typed(trt: Any) -> int:
    """The flag of TensorRT 10; later ones have no other networks."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _add_profile(builder: Any, config: Any, profile: Profile, name: str) -> None:
    shapes = builder.create_optimization_profile()
    for port, (least, tuned, largest) in profile.shapes.items():
        try:
            shapes.set_shape(port, least, tuned, largest)
        except ValueError as error:
            raise SetupError(f"a profile of {name} is not valid: {port}: {error}") from error
    if config.add_optimization_profile(shapes) < 0:
        raise SetupError(f"a profile of {name} is not valid: {profile.shapes}")


def _use_timings(config: Any, timings: bytes) -> Any:
    """The cache that the build reads and fills; None where the library has none."""
    if not hasattr(config, "create_timing_cache"):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # where it has one that does nothing
        cache = config.create_timing_cache(timings)
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _report_progress(trt: Any, config: Any, progress: Progress) -> None:
    if not hasattr(trt, "IProgressMonitor"):
        return

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the library is given at run time
        """Phases are nested; the one that moves is reported."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}
            self._reported_s = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            if time.monotonic() - self._reported_s >= _EVERY_S:
                self._reported_s = time.monotonic()
                progress(f"{phase_name}: {step + 1} of {self._steps.get(phase_name, step + 1)}")
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    config.progress_monitor = Monitor()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


@dataclass(frozen=True)
class Builds:
    """Builds plans with one TensorRT for one kind of GPU.

    Attributes:
        folder: Where plans are kept.
        target: What they are built with.
        compute_capability: Of the GPU.
        progress: Called with one line for each step.
        build: Makes a plan.
    """

    folder: PlanFolder
    target: Target
    compute_capability: str
    progress: Progress
    build: Callable[..., tuple[bytes, bytes]] = build_plan

    def ensure(
        self, bundle: Bundle, *, again: bool = False, is_lookup: bool = False
    ) -> dict[str, Path]:
        """Triton model → its plan, built if there is none that fits.

        Args:
            again: Whether plans that fit are built again.
            is_lookup: Whether a plan that is missing is an error.

        Raises:
            SetupError: TensorRT does not take a graph, or the folder cannot be written.
        """
        return {
            model: self._ensure(bundle, key, model, again=again, is_lookup=is_lookup)
            for key, model in bundle.manifest.parts.items()
        }

    def _ensure(
        self, bundle: Bundle, part: str, model: str, *, again: bool, is_lookup: bool
    ) -> Path:
        graph = bundle.manifest.graphs[part]
        file = bundle.folder.parents[1] / model / bundle.folder.name / graph.file
        version = str(self.target.library.__version__)
        key = PlanKey(model, graph_hash(file, graph), version, self.compute_capability)
        with self.folder.locked():
            found = None if again else self.folder.find(key)
            if found is not None:
                return found
            if is_lookup:
                raise SetupError("none that fits is there, and building one failed: triptych plan")
            for reason in dict.fromkeys(key.difference(other) for other in self.folder.others(key)):
                self.progress(f"{model} has a plan that does not fit: {reason}; building another")
            return self._build(key, file, bundle, part)

    def _build(self, key: PlanKey, file: Path, bundle: Bundle, part: str) -> Path:
        name = f"{key.model} version {bundle.version}"
        self.progress(
            f"building the plan of {name} with TensorRT {key.tensorrt} for compute capability "
            f"{key.compute_capability}; this takes minutes for large models"
        )
        began = time.monotonic()
        cache = f"timings-{key.tensorrt}-{key.compute_capability}.cache"
        plan, timings = self.build(
            self.target,
            file,
            bundle.manifest.graphs[part].profiles,
            self.folder.read(cache),
            lambda line: self.progress(f"building the plan of {name}: {line}"),
        )
        path = self.folder.write(key, plan)
        if timings:
            self.folder.replace(cache, timings)
        took = time.monotonic() - began
        self.progress(f"built the plan of {name} in {took:.1f} s ({len(plan) / 1e6:.0f} MB)")
        return path
