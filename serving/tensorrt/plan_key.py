"""What a plan fits: a graph, its profiles, one TensorRT and one kind of GPU."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.bundle.manifest import Graph

_BLOCK = 1 << 20


@dataclass(frozen=True)
class PlanKey:
    """Plans with equal keys are interchangeable.

    Attributes:
        model: Of Triton.
        graph: SHA-256 of the ONNX file, its external weights and the profiles.
        tensorrt: Version that builds and runs the plan.
        compute_capability: Of the GPU, such as `9.0`.
    """

    model: str
    graph: str
    tensorrt: str
    compute_capability: str

    @property
    def file(self) -> str:
        """Name of the plan's file."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return f"{self.model}-{digest[:16]}.plan"

    def difference(self, other: PlanKey) -> str:
        """How another plan of the model does not fit, for people."""
        if self.tensorrt != other.tensorrt:
            return f"built by TensorRT {other.tensorrt}, this is {self.tensorrt}"
        if self.compute_capability != other.compute_capability:
            return (
                f"built for compute capability {other.compute_capability}, this GPU has "
                f"{self.compute_capability}"
            )
        return "built from another graph"


def graph_hash(file: Path, graph: Graph) -> str:
    """SHA-256 of a graph's file, its weights beside it, and its profiles."""
    digest = hashlib.sha256()
    for path in (file, file.with_name(f"{file.name}.data")):
        if path.exists():
            with path.open("rb") as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
    profiles = [each.model_dump(mode="json") for each in graph.profiles]
    digest.update(json.dumps(profiles, sort_keys=True).encode())
    return digest.hexdigest()
