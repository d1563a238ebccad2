"""OWLv2: OWL-ViT that was trained on a billion images it had labelled itself.

Paper: Minderer et al. 2023, "Scaling Open-Vocabulary Object Detection" (arXiv 2306.09683), §3.
Checkpoints: `model_type: owlv2` (`google/owlv2-*`), class `Owlv2ForObjectDetection`.

Legend: B batch, N patches, D width of the image tower.

What OWL-ViT lacks: a head that scores how likely a patch is any object at all, and images that are
padded to a square in place of being stretched (`ImageSpec.resize` "padded"), so that boxes are in
parts of the square. Differences from `transformers`: as for OWL-ViT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from export.architecture import Architecture, Graphs, no_section
from export.config.weight_names import Rename
from export.models.dual_encoders import clip, owlvit
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> clip.Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: see `read_detector`.
    """
    return owlvit.read_detector(values, "Owlv2ForObjectDetection", patch=16)


# --------------------------------------------------------------------------------------- network


class Detector(owlvit.Detector):
    """OWL-ViT's, with a third head."""

    def __init__(self, config: clip.ImageConfig, embedding_width: int) -> None:
        super().__init__(config, embedding_width)
        self.objectness = owlvit.PatchHead(config.tower.width, outputs=1)

    def heads(self, patches: Tensor) -> tuple[Tensor, ...]:
        """(B, N, D) → outputs of OWL-ViT's heads, and logits (B, N) of any object."""
        return *super().heads(patches), self.objectness(patches).squeeze(-1)


class Owlv2(owlvit.OwlViT):
    """The detector, and CLIP's text tower."""

    detector = Detector


# ----------------------------------------------------------------------------------------- names


def rename(config: clip.Config) -> Rename:
    """`transformers`' names → ours."""
    names = owlvit.detector_names("owlv2")
    return Rename(names | owlvit.head_names("objectness_head", "image.objectness"))


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Owlv2, image: ImageSpec | None) -> Graphs:
    """One graph for images, one for texts (B, and T of texts, dynamic)."""
    return owlvit.detector_graphs(model, image, (("objectness", Role.OBJECTNESS),))


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="owlv2",
    tasks={"detect": no_section},
    read_config=read_config,
    build=Owlv2,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
)
