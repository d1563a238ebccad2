"""The untrained network of `history-flamingo`, its tokenizer and its image recipe.

Each latent of the resampler gets a linear head, which is not kept, and learns one attribute of the
picture's thing. What a latent holds is then easily read by the layers between the words, and
independent of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    IdeficsConfig,
    IdeficsForVisionText2Text,
    PreTrainedTokenizerFast,
    ViTForImageClassification,
)
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.history.flamingo.picture_episodes import MADE_UP_WORDS, PLAIN_WORDS, Pool
from examples.scenes.rendering import SIDE
from examples.scenes.scene import COLOURS, SHAPES, TEXTURE_NAMES
from examples.training.loop import pixel_tensor
from examples.training.vision_initialisation import fit_first_norm, initialise_vision_tower

HEADS, WORD_WIDTH = 2, 32
"""Heads of a layer, their width, and how many dimensions of the model's width words use."""

AROUND, PLACE = "<fake_token_around_image>", "<image>"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
ARROW = "=>"
"""Written by the few-shot layout of `generate`; not read."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word."""
    known = (*SPECIAL, *PLAIN_WORDS, *MADE_UP_WORDS)
    vocabulary = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(ARROW, " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in (*SPECIAL, AROUND, PLACE)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def build_recipe() -> Any:
    """How an image becomes pixels."""
    return IdeficsImageProcessorPil(image_size=SIDE)


def build_model(vocabulary: int) -> IdeficsForVisionText2Text:
    """An untrained Idefics of two layers, each behind a gated one that is not closed at first.

    Word vectors are random unit vectors and remain so, for words of the prompt and for scores
    alike, and heads of the last layer copy them at first: a word that no training episode has is
    copied like any other.

    Args:
        vocabulary: Number of words, without the two tokens of images.
    """
    config = IdeficsConfig(
        vocab_size=vocabulary,
        additional_vocab_size=2,
        hidden_size=HEADS * WORD_WIDTH,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        max_position_embeddings=96,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        alpha_initializer="ones",
        use_resampler=True,
        vision_config={
            "embed_dim": 96,
            "image_size": SIDE,
            "patch_size": 8,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 384,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
        },
        perceiver_config={
            "use_resampler": True,
            "resampler_n_latents": len(ATTRIBUTES),
            "resampler_depth": 1,
            "resampler_n_heads": 4,
            "resampler_head_dim": 24,
        },
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        freeze_text_layers=False,
        freeze_vision_layers=False,
        # twice as fast under autocast on a CPU, and returns what heads attend to
        attn_implementation="eager",  # type: ignore[call-arg]  # a field of every configuration
    )
    model = IdeficsForVisionText2Text(config)
    # never written: images are given
    model.generation_config.bad_words_ids = [[vocabulary], [vocabulary + 1]]
    _initialise_words(model.model.embed_tokens.weight)
    _initialise_copying_heads(model.model.layers[-1].self_attn)
    return model


@torch.no_grad()
def _initialise_words(vectors: nn.Parameter) -> None:
    """Random unit vectors in the first dimensions, which are not trained."""
    vectors.zero_()
    vectors[:, :WORD_WIDTH] = nn.functional.normalize(torch.randn(len(vectors), WORD_WIDTH))
    vectors.requires_grad_(False)


@torch.no_grad()
def _initialise_copying_heads(attention: Any) -> None:
    """Each head adds the words that it attends to; what it attends to is random."""
    copied = torch.eye(WORD_WIDTH, HEADS * WORD_WIDTH)  # (K, D)
    attention.v_proj.weight.copy_(copied.repeat(HEADS, 1))
    attention.o_proj.weight.copy_(copied.T.repeat(1, HEADS))


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
