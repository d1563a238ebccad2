"""The first stage of `history-flamingo`: its image tower and resampler learn attributes.

Each latent of the resampler gets a linear head, which is not kept, and learns one attribute of the
picture's thing. What a latent holds is then easily read by the layers between the words, and
independent of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.history.flamingo.picture_episodes import Pool
from examples.scenes.scene import COLOURS, SHAPES, TEXTURE_NAMES
from examples.training.loop import pixel_tensor
from examples.training.vision_initialisation import fit_first_norm, initialise_vision_tower

ATTRIBUTES = {"colour": COLOURS, "shape": SHAPES, "texture": TEXTURE_NAMES}
"""Attribute of a thing → its values; one latent each."""
START = checkpoint("example-vit")
_GRAY_SHARE = 0.3
_IGNORED = -100
_CHUNK = 100  # pictures


def copy_tower(model: Any, recipe: Any, pool: Pool) -> None:
    """The first layers of `example-vit`, in CLIP's form."""
    vit: Any = ViTForImageClassification.from_pretrained(START, dtype=torch.float32).vit
    clip: Any = SimpleNamespace(
        vision_model=model.model.vision_model, visual_projection=nn.Identity()
    )
    source: Any = SimpleNamespace(encoder=vit)
    initialise_vision_tower(clip, recipe, source, ViTImageProcessorPil.from_pretrained(START))
    fit_first_norm(clip, pixels(pool, torch.arange(64), recipe))


def pixels(pool: Pool, numbers: Tensor, recipe: Any) -> Tensor:
    """Those pictures as the tower takes them, (B, 3, side, side)."""
    images = [pool.images[number] for number in numbers.tolist()]
    return pixel_tensor(images, recipe.image_mean, recipe.image_std)


class AttributeTask(nn.Module):
    """The loss of a pool's pictures, in random order.

    Some are gray, so that shapes are not guessed from the colours they are common in.

    Attributes:
        labels: (pictures, attributes) int64.
    """

    def __init__(self, model: Any, recipe: Any, pool: Pool) -> None:
        super().__init__()
        self.tower = model.model.vision_model
        self.resampler = model.model.perceiver_resampler
        width = self.resampler.embed_dim
        self.heads = nn.ModuleList(nn.Linear(width, len(names)) for names in ATTRIBUTES.values())
        self.labels = labels(pool)
        self._pool, self._recipe = pool, recipe
        self._left = torch.empty(0, dtype=torch.long)

    def latents(self, images: Tensor) -> Tensor:
        """(B, 3, side, side) → (B, L, E)."""
        return self.resampler(self.tower(images).last_hidden_state)

    def scores(self, latents: Tensor) -> list[Tensor]:
        """(B, L, E) → of each attribute (B, values)."""
        return [head(latents[:, index]) for index, head in enumerate(self.heads)]

    def loss(self, batch: int) -> Tensor:
        """Mean cross entropy of the attributes of the next pictures."""
        if len(self._left) < batch:
            self._left = torch.randperm(len(self._pool.images))
        chosen, self._left = self._left[:batch], self._left[batch:]
        images, truth = pixels(self._pool, chosen, self._recipe), self.labels[chosen].clone()
        gray = torch.rand(batch) < _GRAY_SHARE
        images[gray] = images[gray].mean(dim=1, keepdim=True)
        truth[gray, 0] = _IGNORED
        losses = [
            nn.functional.cross_entropy(score.float(), truth[:, index], ignore_index=_IGNORED)
            for index, score in enumerate(self.scores(self.latents(images)))
        ]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def read(self, pool: Pool) -> Tensor:
        """(pictures, L, E): the latents of a pool."""
        numbers = torch.arange(len(pool.images)).split(_CHUNK)
        return torch.cat([self.latents(pixels(pool, some, self._recipe)) for some in numbers])

    @torch.no_grad()
    def accuracies(self, pool: Pool) -> dict[str, float]:
        """Share of a pool's pictures with the right attribute."""
        scores, truth = self.scores(self.read(pool)), labels(pool)
        right = [score.argmax(-1) == truth[:, index] for index, score in enumerate(scores)]
        return {
            name: own.float().mean().item() for name, own in zip(ATTRIBUTES, right, strict=True)
        }


def labels(pool: Pool) -> Tensor:
    """(pictures, attributes) int64: indices into `ATTRIBUTES`."""
    return torch.tensor(
        [
            [names.index(getattr(thing, attribute)) for attribute, names in ATTRIBUTES.items()]
            for thing in pool.things
        ]
    )
