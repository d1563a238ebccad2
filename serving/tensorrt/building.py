"""The plans of one bundle, built where they are missing; a process of its own (`__main__`).

A process, because a build takes minutes and gigabytes of the GPU's memory, all of which its end
returns, and because TensorRT may end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inference.bundle.manifest import Bundle
from inference.errors import SetupError
from serving.tensorrt.builder import Progress, Target, build_plan
from serving.tensorrt.plan_folder import PlanFolder, PlanKey, graph_hash


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
