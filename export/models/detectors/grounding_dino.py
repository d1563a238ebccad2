"""Grounding DINO: boxes in an image for the phrases of a text, which both read each other.

Paper: Liu et al. 2023, "Grounding DINO: Marrying DINO with Grounded Pre-Training for Open-Set
Object Detection", §3 (arXiv 2303.05499): Swin's grids and BERT's vectors attend to each other; the
best places of the grids become queries, whose boxes are refined from layer to layer as in DINO
(Zhang et al. 2022, arXiv 2203.03605). Towers and layers are in files of their own.
Checkpoints: `model_type: grounding-dino` (`IDEA-Research/grounding-dino-*`), class
`GroundingDinoForObjectDetection`.

Legend: B batch, T text positions, S vectors of all grids, N queries, D width.

Differences from `transformers`: pixels come as uint8, and images of one call have one size, so that
none is padded and a result does not depend on its neighbours; a text's last phrase is judged by the
text's own end, not by that of its batch; scores end at the text's last token, and are not padded to
the 256 that it may have. Places too near an edge have a large number for a box, not infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, lower_stateless
from export.checkpoint.checkpoint import Checkpoint
from export.layers.attention.windows import Grid
from export.layers.images.vision import pixels_port, prepare_tower
from export.models.detectors.grounding_dino_config import Config, read_config, rename
from export.models.detectors.grounding_dino_layers import (
    DELIMITERS,
    DecoderLayer,
    EncoderLayer,
    Grids,
    Head,
    Phrases,
    Read,
    Scene,
    TextTower,
    sinusoids,
)
from export.text_encoders.declaration import TEXTS
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError
from inference.tasks.detection.grounding import count_places

_TEXT_BASE = 10_000
_OUTSIDE = 1e4  # logit of a side that is left out: its sigmoid is 1 in every precision
_EPSILON = 1e-5

# --------------------------------------------------------------------------------------- network


class GroundingDino(nn.Module):
    """Both towers, the encoder, the choice of queries and the decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.width
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.image = Grids(config)
        self.text = TextTower(config)
        self.grid_vectors = nn.Parameter(torch.zeros(config.grids, width))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder.layers))
        self.proposal = nn.Linear(width, width)
        self.proposal_norm = make_norm()
        self.proposal_box = Head(width, width, width, 4)
        self.queries = nn.Parameter(torch.zeros(config.queries, width))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder.layers))
        self.position_head = Head(2 * width, width, width)
        self.boxes = nn.ModuleList(Head(width, width, width, 4) for _ in self.decoder)
        self.norm = make_norm()

    def forward(
        self, pixels: Tensor, token_ids: Tensor, lengths: Tensor, chosen: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """(B, height, width, 3) uint8, (B, T) right-padded, (B,) → four tensors.

        Boxes (B, N, 4): centre x and y, width and height, in parts of the image. Scores (B, N, T):
        logits of each token of the text being what is there. The places that became queries (B, N),
        and the scores (B, N) by which they were chosen.

        Args:
            chosen: The places, where another computation of the same has chosen them: see
                `propose`.
        """
        phrases = Phrases.of(token_ids, lengths)
        text = self.text(token_ids, phrases)
        image, grids = self.image(pixels)
        scene = Scene.of(grids, self.grid_vectors, self.config.base)
        positions = sinusoids(phrases.positions.float(), self.config.width, _TEXT_BASE)
        for layer in self.encoder:
            image, text = layer(image, text, scene, phrases, positions)
        read = Read(image, text, lengths)
        found, *choice = self.propose(read, scene, chosen)
        return *self.decode(found, read, grids), *choice

    def propose(self, read: Read, scene: Scene, chosen: Tensor | None) -> tuple[Tensor, ...]:
        """Boxes at the places that suit the text best (§3.3): logits (B, N, 4), places and scores.

        Args:
            chosen: Places that take the best ones' place. The scores are still those of the best,
                and higher by as much as those of the places differ.
        """
        is_inside = ((scene.boxes > 0.01) & (scene.boxes < 0.99)).all(dim=-1, keepdim=True)
        start = torch.where(is_inside, torch.log(scene.boxes / (1 - scene.boxes)), _OUTSIDE)
        objects = self.proposal_norm(self.proposal(read.image * is_inside))
        scores = read.best(objects)
        best, places = scores.topk(self.config.queries, dim=1)
        if chosen is not None:
            best, places = best + (best - scores.gather(1, chosen)).abs(), chosen
        found = self.proposal_box(objects) + start
        return found.gather(1, places[..., None].expand(-1, -1, 4)), places, best

    def decode(self, found: Tensor, read: Read, grids: Sequence[Grid]) -> tuple[Tensor, Tensor]:
        """Logits (B, N, 4) of boxes → boxes and scores of the last layer."""
        boxes, half = found.sigmoid(), self.config.width // 2
        x = self.queries.expand(boxes.shape[0], -1, -1)
        last = len(self.decoder) - 1
        for number, (layer, head) in enumerate(zip(self.decoder, self.boxes, strict=True)):
            x_sines, y_sines, *sides = sinusoids(boxes, half, _TEXT_BASE).unbind(dim=2)
            positions = self.position_head(torch.cat([y_sines, x_sines, *sides], dim=-1))
            x = layer(x, positions, boxes, read, grids)
            read_by = self.norm(x) if number == last else x
            boxes = (head(read_by) + logit(boxes)).sigmoid()
        return boxes, read.scores(self.norm(x))


def logit(parts: Tensor) -> Tensor:
    """The inverse of a sigmoid, of numbers kept away from 0 and 1."""
    parts = parts.clamp(_EPSILON, 1 - _EPSILON)
    return torch.log(parts / (1 - parts))


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: GroundingDino, image: ImageSpec | None) -> Graphs:
    """One graph (B, height, width and T dynamic).

    Raises:
        CheckpointError: the image recipe gives images of fewer places than there are queries.
    """
    image = prepare_tower(model.image.tower, image)
    found = count_places(*image.shape[:2], model.config.strides)
    if found < model.config.queries:
        raise CheckpointError(
            f"an image of {image.shape[0]} x {image.shape[1]} has {found} places, "
            f"fewer than num_queries = {model.config.queries}"
        )
    inputs = (pixels_port(image, has_sizes=True), *TEXTS)
    # no grid is one row or column: tracing takes a size of one for a constant
    height, width = (
        max(side, stride) + more
        for side, stride, more in zip(image.shape, model.config.strides[-1], (37, 11), strict=False)
    )
    queries = model.config.queries
    outputs = (
        Port(name="boxes", dtype="float32", shape=("B", queries, 4), role=Role.BOXES),
        Port(name="scores", dtype="float32", shape=("B", queries, "T"), role=Role.TOKEN_LOGITS),
        Port(name="chosen", dtype="int64", shape=("B", queries), role=Role.CHOSEN),
        Port(name="chosen_scores", dtype="float32", shape=("B", queries), role=Role.CHOSEN_SCORES),
    )
    sizes = {"T": 9, "height": height, "width": width}
    lowering = lower_stateless(model, inputs, *outputs, traced_sizes=sizes)
    return Graphs(
        lowerings={"detect": lowering},
        parts={"detect": ""},
        source_vocabulary=model.config.text.vocabulary_size,
    )


def detect_section(model: GroundingDino, checkpoint: Checkpoint) -> dict[str, Any]:
    """What of the vocabulary ends a phrase, and how many places an image must have."""
    size = model.config.text.vocabulary_size
    delimiters = tuple(token for token in DELIMITERS if token < size)
    return {"delimiters": delimiters, "strides": model.config.strides}


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="grounding-dino",
    tasks={"detect": detect_section},
    read_config=read_config,
    build=GroundingDino,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.swin.image,
)
