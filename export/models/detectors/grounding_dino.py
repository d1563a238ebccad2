"""Grounding DINO: boxes in an image for the phrases of a text, which both read each other.

Paper: Liu et al. 2023, "Grounding DINO: Marrying DINO with Grounded Pre-Training for Open-Set
Object Detection", §3 (arXiv 2303.05499): Swin's grids and BERT's vectors attend to each other; the
best places of the grids become queries, whose boxes are refined from layer to layer as in DINO
(Zhang et al. 2022, arXiv 2203.03605).
Checkpoints: `model_type: grounding-dino` (`IDEA-Research/grounding-dino-*`), class
`GroundingDinoForObjectDetection`.

Legend: B batch, T text positions, S vectors of all grids, N queries, D width.

Differences from `transformers`: pixels come as uint8, and images of one call have one size, so that
none is padded and a result does not depend on its neighbours; a text's last phrase is judged by the
text's own end, not by that of its batch; scores end at the text's last token, and are not padded to
the 256 that it may have. Places too near an edge have a large number for a box, not infinity.

Decision D120.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, Lowering
from export.checkpoint.checkpoint import Checkpoint
from export.layers.attention.attention import Attention
from export.layers.attention.deformable import DeformableAttention
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.heads import Heads
from export.layers.attention.scores import within
from export.layers.attention.windows import Grid
from export.layers.images.image_input import pixels_port, prepare_tower
from export.layers.mlp import MLP
from export.models.detectors.grounding_dino_config import GROUPS, Config, Stack, read_config, rename
from export.models.encoders import bert
from export.models.vision import swin_pyramid
from export.twin import TINY_TEXT, Twin
from inference.bundle.manifest import Graph, ImageSpec, Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError
from inference.tasks.detection.grounded import count_places

DELIMITERS = (101, 102, 1012, 1029)
"""[CLS], [SEP], "." and "?" of BERT's vocabulary: what ends a phrase, in every checkpoint."""
_TEXT_BASE = 10_000
_OUTSIDE = 1e4  # logit of a side that is left out: its sigmoid is 1 in every precision
_EPSILON = 1e-5

# ----------------------------------------------------------------------------------------- texts


class Phrases(NamedTuple):
    """Which tokens of a text belong together (§3.4, "sub-sentence level").

    Attributes:
        lengths: (B,) int32.
        positions: (B, T) of each token in its phrase.
        bias: (B, 1, T, T), so that a token attends to its phrase only.
    """

    lengths: Tensor
    positions: Tensor
    bias: Tensor

    @classmethod
    def of(cls, token_ids: Tensor, lengths: Tensor) -> Phrases:
        """(B, T) right-padded, (B,) → as published.

        A delimiter ends the phrase in front of it. What the text's first or last token ends, and
        what nothing ends, is no phrase: its tokens attend to themselves.
        """
        size = token_ids.shape[1]
        place = torch.arange(size)
        inside = within(lengths, size)
        is_end = (token_ids[..., None] == torch.tensor(DELIMITERS)).sum(dim=-1) * inside
        passed = is_end.cumsum(dim=1)
        phrase = passed - is_end  # ends in front of each token
        last = is_end.gather(1, lengths[:, None].long() - 1)
        ended = passed[:, -1:] - last  # by a token that is not the last one
        is_phrase = inside & (phrase < ended) & (phrase >= is_end[:, :1])
        together = (phrase[:, :, None] == phrase[:, None]) & is_phrase[:, None]
        positions = (together & (place[:, None] > place)).sum(dim=-1)
        visible = together | torch.eye(size, dtype=torch.bool)
        return cls(lengths, positions, torch.where(visible, 0.0, MASKED_SCORE)[:, None])


class TextTower(nn.Module):
    """BERT without its pooler, and a projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = bert.Encoder(config.text)
        self.projection = nn.Linear(config.text.width, config.width)

    def forward(self, token_ids: Tensor, phrases: Phrases) -> Tensor:
        """(B, T) → (B, T, D)."""
        bert_ = self.encoder
        x = bert_.tokens(token_ids) + bert_.positions(phrases.positions)
        if bert_.segment_types:
            x = x + bert_.segments.weight[0]
        x = bert_.norm(x)
        for block in bert_.blocks:
            x = block(x, bias=phrases.bias)
        return self.projection(x)


# ------------------------------------------------------------------------------------- positions


def sinusoids(places: Tensor, width: int, base: float) -> Tensor:
    """(…) → (…, width): sines and cosines by turns (Vaswani et al. 2017, §3.5), of 2π · places."""
    exponents = 2 * torch.arange(width // 2) / width
    angles = places[..., None] * (2 * math.pi) / base**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def grid_positions(grid: Grid, width: int, base: float) -> Tensor:
    """(h·w, width): half of it of a place's row, half of its column."""
    rows, columns = (
        sinusoids((torch.arange(size) + 1) / (size + 1e-6), width // 2, base) for size in grid
    )
    rows = rows[:, None].expand(-1, grid[1], -1)
    return torch.cat([rows, columns.expand(grid[0], -1, -1)], dim=-1).flatten(0, 1)


def centres(grid: Grid) -> Tensor:
    """(h·w, 2): centre x and y of each place, in parts of the image."""
    y, x = ((torch.arange(size) + 0.5) / size for size in grid)
    rows, columns = y[:, None].expand(-1, grid[1]), x.expand(grid[0], -1)
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


def logit(parts: Tensor) -> Tensor:
    """The inverse of a sigmoid, of numbers kept away from 0 and 1."""
    parts = parts.clamp(_EPSILON, 1 - _EPSILON)
    return torch.log(parts / (1 - parts))


# ---------------------------------------------------------------------------------------- blocks


class MixedAttention(Attention):
    """Attention whose queries, keys and values are made of different vectors."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, N, D), (B, T, D), (B, T, D) → (B, N, D).

        Args:
            lengths: (B,) int32, keys that are no padding.
            bias: Of the scores, (B, 1, N, T).
        """
        query, key, value = self.query(query), self.key(key), self.value(value)
        return self.out(self.mix(query, key, value, lengths, bias))


class MutualAttention(MixedAttention):
    """An image and a text attend to each other, by the same scores (§3.2, as in GLIP)."""

    def __init__(self, width: int, stack: Stack) -> None:
        inner, count = stack.mlp_width // 2, stack.heads // 2
        super().__init__(Heads(width, count, head_width=inner // count))
        self.image_value = nn.Linear(width, inner)
        self.text_out = nn.Linear(inner, width)

    def both(self, image: Tensor, text: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, T, D) → what each has of the other, of the same shapes."""
        query, key = self.query(image), self.key(text)
        of_text = self.mix(query, key, self.value(text), lengths)
        return self.out(of_text), self.text_out(self.mix(key, query, self.image_value(image)))


class EncoderLayer(nn.Module):
    """Image and text attend to each other, then each to itself (figure 3, block 2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, stack = config.width, config.encoder
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.fused_image_norm, self.fused_text_norm = make_norm(), make_norm()
        self.fusion = MutualAttention(width, stack)
        self.image_scale = nn.Parameter(torch.zeros(width))
        self.text_scale = nn.Parameter(torch.zeros(width))
        self.text_attention = MixedAttention(Heads(width, stack.heads // 2))
        self.text_attention_norm = make_norm()
        self.text_mlp = MLP(width, stack.mlp_width // 2, config.activation)
        self.text_mlp_norm = make_norm()
        self.attention = DeformableAttention(width, stack.heads, config.grids, stack.points)
        self.attention_norm = make_norm()
        self.mlp = MLP(width, stack.mlp_width, config.activation)
        self.mlp_norm = make_norm()

    def forward(
        self, image: Tensor, text: Tensor, scene: Scene, phrases: Phrases, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, T, D) → the same.

        Args:
            positions: Of the text's tokens, (B, T, D).
        """
        image, text = self.fused_image_norm(image), self.fused_text_norm(text)
        of_text, of_image = self.fusion.both(image, text, phrases.lengths)
        image = image + self.image_scale * of_text
        text = text + self.text_scale * of_image

        placed = text + positions
        attended = self.text_attention(placed, placed, text, bias=phrases.bias)
        text = self.text_attention_norm(text + attended)
        text = self.text_mlp_norm(text + self.text_mlp(text))

        places = scene.places[None]
        attended = self.attention(image + scene.positions, places, image, scene.grids)
        image = self.attention_norm(image + attended)
        return self.mlp_norm(image + self.mlp(image)), text


class DecoderLayer(nn.Module):
    """Queries attend to each other, to the text and to the image (figure 3, block 3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, stack = config.width, config.decoder
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.attention = MixedAttention(Heads(width, stack.heads))
        self.attention_norm = make_norm()
        self.text_attention = MixedAttention(Heads(width, stack.heads))
        self.text_attention_norm = make_norm()
        self.image_attention = DeformableAttention(width, stack.heads, config.grids, stack.points)
        self.image_attention_norm = make_norm()
        self.mlp = MLP(width, stack.mlp_width, config.activation)
        self.mlp_norm = make_norm()

    def forward(
        self, x: Tensor, positions: Tensor, boxes: Tensor, read: Read, grids: Sequence[Grid]
    ) -> Tensor:
        """(B, N, D) → (B, N, D).

        Args:
            positions: Of the queries' boxes, (B, N, D).
            boxes: (B, N, 4), in parts of the image.
        """
        placed = x + positions
        x = self.attention_norm(x + self.attention(placed, placed, x))
        attended = self.text_attention(x + positions, read.text, read.text, read.lengths)
        x = self.text_attention_norm(x + attended)
        attended = self.image_attention(x + positions, boxes, read.image, grids)
        x = self.image_attention_norm(x + attended)
        return self.mlp_norm(x + self.mlp(x))


class Head(nn.Sequential):
    """Linear layers with a ReLU between them."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for given, made in pairwise(widths):
            layers += [nn.Linear(given, made), nn.ReLU()]
        super().__init__(*layers[:-1])


# --------------------------------------------------------------------------------------- network


@dataclass(frozen=True)
class Scene:
    """What the grids of an image's size decide, the same for every image of it.

    Attributes:
        grids: Rows and columns of each.
        positions: (S, D), the vector of each place's grid included.
        places: (S, 2), centre x and y of each, in parts of the image.
        boxes: (S, 4), a box at each: its centre, and sides that double from grid to grid.
    """

    grids: tuple[Grid, ...]
    positions: Tensor
    places: Tensor
    boxes: Tensor

    @classmethod
    def of(cls, grids: Sequence[Grid], vectors: Tensor, base: float) -> Scene:
        """The scene of grids, of each of which `vectors` (L, D) has one."""
        positions, places, boxes = [], [], []
        for number, grid in enumerate(grids):
            positions.append(grid_positions(grid, vectors.shape[1], base) + vectors[number])
            places.append(centres(grid))
            boxes.append(functional.pad(places[-1], (0, 2), value=0.05 * 2**number))
        return cls(tuple(grids), torch.cat(positions), torch.cat(places), torch.cat(boxes))


class Read(NamedTuple):
    """What the decoder reads: (B, S, D), (B, T, D), and the texts' lengths (B,)."""

    image: Tensor
    text: Tensor
    lengths: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N, T), of each vector with each token."""
        return x @ self.text.transpose(1, 2)

    def best(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N), the largest of the scores."""
        inside = within(self.lengths, self.text.shape[1])[:, None]
        return self.scores(x).masked_fill(~inside, MASKED_SCORE).amax(dim=-1)


class Grids(nn.Module):
    """The image tower's grids, and smaller ones, as vectors of one width."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tower = swin_pyramid.Pyramid(config.image)
        read, width = config.image.widths, config.width
        made: list[nn.Module] = [nn.Conv2d(given, width, kernel_size=1) for given in read]
        for place in range(len(read), config.grids):
            given = read[-1] if place == len(read) else width
            made.append(nn.Conv2d(given, width, kernel_size=3, stride=2, padding=1))
        self.convolutions = nn.ModuleList(made)
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, width) for _ in made)

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Grid]]:
        """(B, height, width, 3) uint8 → (B, S, D), and rows and columns of each grid."""
        found = [grid.permute(0, 3, 1, 2) for grid in self.tower.grids(pixels)]
        vectors, grids = [], []
        x = found[-1]  # the first of the smaller grids is made of the tower's last one
        for number, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            made = norm(convolution(found[number] if number < len(found) else x))
            x = x if number < len(found) else made
            grids.append((made.shape[2], made.shape[3]))
            vectors.append(made.flatten(2).transpose(1, 2))
        return torch.cat(vectors, dim=1), grids


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
    inputs = (
        pixels_port(image, has_sizes=True),
        Port(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Port(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
    )
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
    lowering = Lowering(
        model,
        Graph(file="model.onnx", inputs=inputs, outputs=outputs),
        traced_sizes={"T": 9, "height": height, "width": width},
    )
    return Graphs(
        lowerings={"detect": lowering},
        parts={"detect": ""},
        source_vocabulary=model.config.text.vocabulary_size,
    )


def detect_section(model: GroundingDino, checkpoint: Checkpoint) -> dict[str, Any]:
    """What ends a phrase, and how many places an image must have."""
    return {"delimiters": DELIMITERS, "strides": model.config.strides}


# ------------------------------------------------------------------------------------------ twin

_TEXT = TINY_TEXT | {"model_type": "bert", "vocab_size": 1040}
_IMAGE = {
    "model_type": "swin",
    "embed_dim": 12,
    "depths": [1, 2, 1],
    "num_heads": [1, 2, 3],
    "window_size": 4,
    "mlp_ratio": 2,
    "image_size": 64,
    "out_indices": [2, 3],
}
_PLAIN: dict[str, Any] = {
    "text_config": _TEXT,
    "backbone_config": _IMAGE,
    "d_model": 32,
    "num_queries": 9,
    "num_feature_levels": 3,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_n_points": 2,
    "decoder_n_points": 3,
    "max_text_len": 16,
}
TWIN = Twin(
    reference="transformers:GroundingDinoForObjectDetection",
    configs={
        "plain": _PLAIN,
        "odd": _PLAIN
        | {
            "text_config": _TEXT
            | {"hidden_size": 30, "num_attention_heads": 3, "layer_norm_eps": 1e-3},
            "backbone_config": _IMAGE
            | {"window_size": 3, "qkv_bias": False, "image_size": [60, 84], "out_indices": [1, 3]},
            "d_model": 64,
            "num_queries": 7,
            "num_feature_levels": 4,
            "encoder_layers": 1,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 40,
            "activation_function": "gelu",
            "layer_norm_eps": 1e-3,
            "decoder_bbox_embed_share": False,
            "positional_embedding_temperature": 30,
        },
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="grounding-dino",
    tasks={"detect": detect_section},
    read_config=read_config,
    build=GroundingDino,
    rename=rename,
    graphs=graphs,
    twin=TWIN,
    image_size=lambda config: config.image.swin.image,
)
