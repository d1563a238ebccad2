"""What the example CLIP learns: which text is which picture's, in families of similar scenes."""

from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import BatchEncoding, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from examples.clip.families import SLOT_CLASSES, UNSAID, Description, matches, slots
from examples.clip.shots import FAMILIAR
from examples.scenes.rendering import render
from examples.scenes.scene import pick
from examples.scenes.scores import TEMPLATE
from examples.training.loop import pixel_tensor

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
