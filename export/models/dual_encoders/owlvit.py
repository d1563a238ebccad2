"""OWL-ViT and OWLv2: boxes in an image for texts that no box was trained for.

Papers: Minderer et al. 2022, "Simple Open-Vocabulary Object Detection with Vision Transformers", §3
(arXiv 2205.06230): CLIP's towers, and two heads on every patch of the image, one for its box and
one for a vector that is compared with those of texts. Minderer et al. 2023, "Scaling
Open-Vocabulary Object Detection", §3 (arXiv 2306.09683): OWLv2 has a third head, which scores how
likely a patch is any object at all, and its images are padded to a square in place of being
stretched (`ImageSpec.resize` "padded"), so that boxes are in parts of the square.
Checkpoints: `model_type: owlvit` (`google/owlvit-*`), class `OwlViTForObjectDetection`, and `owlv2`
(`google/owlv2-*`), class `Owlv2ForObjectDetection`.

Legend: B batch, T text positions, N patches, D width of the image tower, E width of the texts'
vectors.

Differences from `transformers`: images and texts are two graphs, because labels are embedded once.
The scale and the shift of a patch's scores are applied to its vector, so that the score of a text
is one product; `transformers` adds 1e-6 to the lengths by which it divides texts' vectors, which
changes scores by as much. Image-guided detection is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, lower_stateless, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.images.vision import patch_grid
from export.models.dual_encoders import clip
from export.text_encoders.declaration import TEXTS
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any], name: str, patch: int) -> clip.Config:
    """The configuration of a detector over CLIP's towers.

    Args:
        name: Of its class in `transformers`.
        patch: Default of `patch_size`.

    Raises:
        CheckpointError: another class; vectors of patches and of texts that differ in width.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but(name)
    image = reader.section(
        "vision_config", clip.IMAGE_DEFAULTS | {"image_size": 768, "patch_size": patch}
    )
    text = reader.section("text_config", clip.TEXT_DEFAULTS | {"max_position_embeddings": 16})
    config = reader.read(
        clip.Config,
        image=image.read(clip.ImageConfig),
        text=text.read(clip.TextConfig, end_token=None),
    )
    width = config.embedding_width
    if config.text.tower.width != width:
        raise CheckpointError(f"{text.place}: hidden_size must be projection_dim = {width}")
    return config


# --------------------------------------------------------------------------------------- network


class PatchHead(nn.Module):
    """Vectors of patches → `outputs` numbers each."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, D) → (B, N, outputs)."""
        x = functional.gelu(self.first(patches))
        x = functional.gelu(self.second(x))
        return self.out(x)


class BoxHead(PatchHead):
    """Vectors of patches → boxes, as offsets from the patches' own places."""

    bias: Tensor

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__(width, outputs=4)
        self.register_buffer("bias", box_bias(grid), persistent=False)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, D) → (B, N, 4): centre (x, y), width and height, in parts of the image."""
        return (super().forward(patches) + self.bias).sigmoid()


def box_bias(grid: tuple[int, int]) -> Tensor:
    """(N, 4): logits of a box of a patch's size, centred at the patch's lower right corner."""
    rows, columns = grid
    y = (torch.arange(rows) + 1) / rows
    x = (torch.arange(columns) + 1) / columns
    centres = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)  # (N, 2)
    sizes = torch.tensor([1 / columns, 1 / rows]).expand_as(centres)
    parts = torch.cat([centres, sizes], dim=-1)
    return torch.log(parts + 1e-4) - torch.log1p(-parts + 1e-4)


class ClassHead(nn.Module):
    """Vectors of patches → what the product with a text's vector scores."""

    def __init__(self, width: int, embedding_width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, embedding_width)
        self.shift = nn.Linear(width, 1)
        self.scale = nn.Linear(width, 1)

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) → (B, N, E) and (B, N): a logit is a text's product with one, plus the other.

        The scale is elu + 1, a positive number.
        """
        vectors = self.projection(patches)
        vectors = vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-6)
        scale = functional.elu(self.scale(patches)) + 1
        return vectors * scale, (self.shift(patches) * scale).squeeze(-1)


class Detector(clip.VisionTransformer):
    """CLIP's image tower, both heads on top of its patches (§3.1).

    Attributes:
        further: Name and role of outputs (B, N) that follow those of these heads.
    """

    further: ClassVar[tuple[tuple[str, Role], ...]] = ()

    def __init__(self, config: clip.ImageConfig, embedding_width: int) -> None:
        super().__init__(config.tower, config.image, config.patch)
        width = config.tower.width
        grid = patch_grid(config.image, config.patch)
        self.patch_norm = nn.LayerNorm(width, eps=config.tower.norm_epsilon)
        self.box = BoxHead(width, grid)
        self.classes = ClassHead(width, embedding_width)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """(B, height, width, 3) uint8 → boxes (B, N, 4), then what `ClassHead` returns."""
        return self.heads(self.regions(pixels))

    def regions(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → vectors of patches that the heads read, (B, N, D)."""
        hidden = self.norm(self.hidden(pixels))
        return self.patch_norm(hidden[:, 1:] * hidden[:, :1])

    def heads(self, patches: Tensor) -> tuple[Tensor, ...]:
        """(B, N, D) → outputs of all heads."""
        return self.box(patches), *self.classes(patches)


class ObjectnessDetector(Detector):
    """OWLv2's, with a third head."""

    further = (("objectness", Role.OBJECTNESS),)

    def __init__(self, config: clip.ImageConfig, embedding_width: int) -> None:
        super().__init__(config, embedding_width)
        self.objectness = PatchHead(config.tower.width, outputs=1)

    def heads(self, patches: Tensor) -> tuple[Tensor, ...]:
        """(B, N, D) → outputs of OWL-ViT's heads, and logits (B, N) of any object."""
        return *super().heads(patches), self.objectness(patches).squeeze(-1)


class OwlViT(nn.Module):
    """The detector, and CLIP's text tower."""

    def __init__(self, config: clip.Config, detector: type[Detector]) -> None:
        super().__init__()
        self.image = detector(config.image, config.embedding_width)
        self.text = clip.TextTower(config.text, config.embedding_width)
        self.patches = self.image.box.bias.shape[0]


# ----------------------------------------------------------------------------------------- names


def rename(base: str) -> Rename:
    """`transformers`' names → ours, of a detector whose towers are in `base`."""
    vision = f"{base}.vision_model"
    table: dict[str, Entry] = {
        **clip.vision_names(vision, "image"),
        f"{vision}.pre_layernorm": "image.first_norm",
        **clip.text_names(f"{base}.text_model"),
        f"{base}.text_projection": "text.projection",
        f"{base}.visual_projection": None,  # of CLIP's image vector
        f"{base}.logit_scale": None,
        "layer_norm": "image.patch_norm",
        "box_bias": None,
        **head_names("box_head", "image.box"),
        "class_head.dense0": "image.classes.projection",
        "class_head.logit_shift": "image.classes.shift",
        "class_head.logit_scale": "image.classes.scale",
        **head_names("objectness_head", "image.objectness"),
    }
    return Rename(table)


def head_names(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of a `PatchHead`."""
    layers = ("first", "second", "out")
    return {f"{theirs}.dense{place}": f"{ours}.{layer}" for place, layer in enumerate(layers)}


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: OwlViT, image: ImageSpec | None) -> Graphs:
    """One graph for images, one for texts (B, and T of texts, dynamic)."""
    width = model.text.projection.out_features
    towers = clip.tower_graphs(model, image, TEXTS, width)
    given = towers.lowerings["image"].graph.inputs
    found: tuple[tuple[str, tuple[int, ...], Role], ...] = (
        ("boxes", (4,), Role.BOXES),
        ("regions", (width,), Role.REGIONS),
        ("region_biases", (), Role.REGION_BIASES),
        *((name, (), role) for name, role in model.image.further),
    )
    outputs = tuple(
        Port(name=name, dtype="float32", shape=("B", model.patches, *last), role=role)
        for name, last, role in found
    )
    detector = lower_stateless(model.image, given, *outputs)
    return replace(towers, lowerings={**towers.lowerings, "image": detector})


# ----------------------------------------------------------------------------------- declaration


def declare(name: str, class_name: str, patch: int, detector: type[Detector]) -> Architecture:
    """The architecture.

    Args:
        class_name: Of its class in `transformers`.
        patch: Default of `patch_size`.
    """
    return Architecture(
        name=name,
        tasks={"detect": no_section},
        read_config=partial(read_config, name=class_name, patch=patch),
        build=partial(OwlViT, detector=detector),
        rename=lambda config: rename(name),
        graphs=graphs,
        image_size=lambda config: config.image.image,
    )


OWLVIT = declare("owlvit", "OwlViTForObjectDetection", 32, Detector)
OWLV2 = declare("owlv2", "Owlv2ForObjectDetection", 16, ObjectnessDetector)
