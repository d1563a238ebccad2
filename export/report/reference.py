"""What a published bundle is compared with: its checkpoint in PyTorch, or its float32 bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from export.architecture import Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.graphs.source_model import SourceModel
from export.parity.graph_runs import LazySessions, bundle_path, torch_run
from export.parity.parity_inputs import Observation, Run
from export.text_encoders.sentence_transformers import is_sentence_folder, set_pooling
from inference.bundle.manifest import Bundle, Manifest

Observe = Callable[[Run, Manifest], list[Observation]]
"""Outputs of graphs for the inputs of a verification."""


class Unrepeatable(Exception):
    """A check cannot be repeated here; the message says why."""


@dataclass
class Origin:
    """Of one bundle.

    Attributes:
        bundle: Published.
        checkpoint: None where it is not available.
        missing: Why there is no checkpoint.
        float32: The float32 bundle of the same checkpoint, where the repository has one.
    """

    bundle: Bundle
    checkpoint: Checkpoint | None
    missing: str
    float32: Bundle | None

    def require_checkpoint(self) -> Checkpoint:
        """The checkpoint.

        Raises:
            Unrepeatable: there is none.
        """
        if self.checkpoint is None:
            raise Unrepeatable(self.missing)
        return self.checkpoint

    @cached_property
    def graphs(self) -> Graphs:
        """The PyTorch modules, weights loaded.

        Raises:
            Unrepeatable: there is no checkpoint.
        """
        model = SourceModel(self.require_checkpoint())
        set_pooling(model.network, model.checkpoint, self._chosen_pooling(model.checkpoint))
        return model.architecture.graphs(model.network, self.bundle.manifest.image)

    def _chosen_pooling(self, checkpoint: Checkpoint) -> str | None:
        """The pooling that a text encoder was exported with, where its folder has none."""
        if is_sentence_folder(checkpoint):
            return None
        return self.bundle.manifest.tasks.get("embed", {}).get("pooling")

    @cached_property
    def float32_manifest(self) -> Manifest:
        """The manifest as it was before the graphs were lowered."""
        graphs = {key: lowering.graph for key, lowering in self.graphs.lowerings.items()}
        changed = {"states": self.graphs.states, "graphs": graphs}
        return self.bundle.manifest.model_copy(update=changed)

    def float32_outputs(self, observe: Observe) -> tuple[list[Observation], str]:
        """Outputs of PyTorch, or of the float32 bundle; and whose they are.

        Raises:
            Unrepeatable: there is neither.
        """
        if self.checkpoint is not None:
            return observe(torch_run(self.graphs), self.float32_manifest), "PyTorch"
        if self.float32 is None:
            raise Unrepeatable(
                f"{self.missing}, and the repository has no fp32 bundle of the same checkpoint"
            )
        original = self.float32
        files = {key: bundle_path(original, key) for key in original.manifest.graphs}
        outputs = observe(LazySessions(files), original.manifest)
        return outputs, f"{original.manifest.name} version {original.version} (fp32)"
