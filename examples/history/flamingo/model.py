"""The untrained network of `history-flamingo`, its tokenizer and its image recipe."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import nn
from transformers import IdeficsConfig, IdeficsForVisionText2Text, PreTrainedTokenizerFast
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil

from examples.history.flamingo.picture_episodes import MADE_UP_WORDS, PLAIN_WORDS
from examples.history.flamingo.tower import ATTRIBUTES
from examples.scenes.rendering import SIDE

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
