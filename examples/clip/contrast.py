"""What the example CLIP learns: which text is which picture's, in families of similar scenes.

Within a family every label is a hard negative for every other picture, in both directions.
Labels omit some words, so one label can be true of several pictures; `matches` computes which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from transformers import BatchEncoding, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from examples.clip.shots import FAMILIAR
from examples.scenes.rendering import render
from examples.scenes.scene import (
    BACKGROUNDS,
    COLOURS,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURE_NAMES,
    Detail,
    Scene,
    Thing,
    label,
    neighbours,
    pick,
    scenes,
)
from examples.scenes.scores import TEMPLATE
from examples.training.loop import pixel_tensor

UNSAID = -100  # cross entropy skips it
_THING_CLASSES = [len(names) for names in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES)]
SLOT_CLASSES = [*_THING_CLASSES, 1 + len(RELATIONS), *_THING_CLASSES, len(BACKGROUNDS)]
_FULL_DETAIL_SHARE = 0.6


@dataclass(frozen=True)
class Description:
    """A scene described from its first thing, and the words that the label includes."""

    scene: Scene
    detail: Detail

    @property
    def text(self) -> str:
        """The label."""
        return label(self.scene, self.detail)


def families(count: int, members: int, seed: int, moved: int = 0) -> Iterator[list[Description]]:
    """Yields `count` families: a training scene and neighbours that training may show too.

    Of two things, at least `moved` members differ from the first in nothing but the relation:
    embeddings learn relations last, and few of a scene's neighbours differ in the relation.
    """
    rng = np.random.default_rng([seed, 3])
    for scene in scenes("train", count, seed):
        others = [other for other in neighbours(scene) if not other.is_withheld]
        family = [scene]
        if scene.second is not None and moved:
            family += _sample(rng, [one for one in others if one.relation != scene.relation], moved)
        rest = [other for other in others if other not in family]
        family += _sample(rng, rest, members - len(family))
        detail = _draw_detail(rng)
        yield [
            Description(member.seen_from_second() if rng.random() < 0.5 else member, detail)
            for member in family
        ]


def matches(descriptions: list[Description]) -> NDArray[Any]:
    """Whether each label is true of each scene: (scenes, labels) bool, the diagonal always true."""
    described = np.array([_codes(one.scene, one.detail) for one in descriptions])
    shown = np.array([_codes(one.scene, Detail()) for one in descriptions])
    reverse = np.array([_codes(one.scene.seen_from_second(), Detail()) for one in descriptions])
    return _agree(shown, described) | _agree(reverse, described)


def slots(description: Description) -> list[int]:
    """Classes for `SLOT_CLASSES` by position: left or upper thing, relation, other thing.

    `UNSAID` marks what the label leaves out, and the second thing of a scene of one.
    """
    scene, detail = description.scene, description.detail
    if scene.relation in ("right", "below"):
        scene = scene.seen_from_second()
    codes = _codes(scene, detail)
    if scene.second is None:
        codes[5:9] = [UNSAID] * 4
    return codes


def _agree(shown: NDArray[Any], described: NDArray[Any]) -> NDArray[Any]:
    is_equal = (shown[:, None] == described[None, :]) | (described[None, :] == UNSAID)
    return is_equal.all(-1)


def _codes(scene: Scene, detail: Detail) -> list[int]:
    """One number for each attribute; a scene of one thing has zeros for the second."""
    codes = _thing_codes(scene.first, detail)
    if scene.second is not None and scene.relation is not None:
        codes += [1 + RELATIONS.index(scene.relation), *_thing_codes(scene.second, detail)]
    else:
        codes += [0, 0, 0, 0, 0]
    background = BACKGROUNDS.index(scene.background) if detail.has_background else UNSAID
    return [*codes, background]


def _thing_codes(thing: Thing, detail: Detail) -> list[int]:
    return [
        SIZES.index(thing.size) if detail.has_sizes else UNSAID,
        COLOURS.index(thing.colour) if detail.has_colours else UNSAID,
        TEXTURE_NAMES.index(thing.texture),
        SHAPES.index(thing.shape),
    ]


def _sample(rng: np.random.Generator, found: list[Scene], count: int) -> list[Scene]:
    return [found[index] for index in rng.choice(len(found), count, replace=False)]


def _draw_detail(rng: np.random.Generator) -> Detail:
    if rng.random() < _FULL_DETAIL_SHARE:
        return Detail()
    return Detail(
        has_sizes=bool(rng.random() < 0.5),
        has_colours=bool(rng.random() < 0.8),
        has_background=bool(rng.random() < 0.4),
    )


FAMILY = 6
"""Scenes that differ in one attribute."""
TEMPLATES = (TEMPLATE, *FAMILIAR)
"""The default of the zero-shot route is there twice."""


class Contrast(nn.Module):
    """The contrastive loss of freshly drawn families of training scenes.

    With the contrastive loss alone, "A left of B" and "A right of B" collapsed to one embedding.
    With `names_slots`, one linear head reads from either embedding which thing stands left or above
    and which right or below; that separates the two.
    """

    def __init__(
        self,
        model: CLIPModel,
        tokenizer: CLIPTokenizer,
        processor: CLIPImageProcessorPil,
        stream: Iterator[list[Description]],
        names_slots: bool,
    ) -> None:
        super().__init__()
        self._model = model
        self._tokenizer = tokenizer
        self._processor = processor
        self._families = stream
        self._rng = np.random.default_rng(4)  # of templates
        width: int = model.config.projection_dim  # type: ignore[assignment]  # typed as optional
        self._slot_head = nn.Linear(width, sum(SLOT_CLASSES)) if names_slots else None

    def loss(self, step: int, batch: int) -> torch.Tensor:
        """The loss over the next families, `batch` pictures and texts at most."""
        drawn = self._draw(batch)
        pictures = [render(one.scene, step * batch + index) for index, one in enumerate(drawn)]
        output = self._model(**self._tokens(drawn), pixel_values=self.pixels(pictures))
        scores = output.logits_per_image.float()
        loss = contrastive_loss(scores, torch.from_numpy(matches(drawn)))
        if self._slot_head is None:
            return loss
        truth = torch.tensor([slots(one) for one in drawn])
        return (
            loss
            + self._slot_loss(output.image_embeds, truth) / 2
            + self._slot_loss(output.text_embeds, truth) / 2
        )

    def read(self, batch: int) -> torch.Tensor:
        """The loss of predicting attributes by position from the text alone, for the text tower."""
        drawn = self._draw(batch)
        features = self._model.get_text_features(**self._tokens(drawn)).pooler_output
        embeddings = nn.functional.normalize(features, dim=-1)
        return self._slot_loss(embeddings, torch.tensor([slots(one) for one in drawn]))

    def _draw(self, batch: int) -> list[Description]:
        return [one for _ in range(batch // FAMILY) for one in next(self._families)]

    def _tokens(self, drawn: list[Description]) -> BatchEncoding:
        texts = [pick(self._rng, TEMPLATES).format(one.text) for one in drawn]
        return self._tokenizer(texts, padding=True, return_tensors="pt")

    def _slot_loss(self, embeddings: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy over the slots: embeddings (B, D) of length 1, truth (B, slots)."""
        assert self._slot_head is not None
        scores = self._slot_head(10 * embeddings).float().split(SLOT_CLASSES, dim=-1)
        losses = [
            nn.functional.cross_entropy(score, truth[:, index], reduction="sum")
            for index, score in enumerate(scores)
        ]
        return torch.stack(losses).sum() / (truth != UNSAID).sum()

    def pixels(self, pictures: list[Image.Image]) -> torch.Tensor:
        """The pictures, preprocessed as in the saved image recipe."""
        return pixel_tensor(pictures, self._processor.image_mean, self._processor.image_std)


def contrastive_loss(scores: torch.Tensor, is_true: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over pictures and over texts of `scores` (pictures, texts).

    Texts that are true of a picture without being its own, by `is_true` (pictures, texts) bool,
    are excluded from the loss.
    """
    own = torch.arange(len(scores))
    scores = scores.masked_fill(is_true & ~torch.eye(len(scores), dtype=torch.bool), -torch.inf)
    return (
        nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)
    ) / 2
