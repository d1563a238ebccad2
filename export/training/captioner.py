"""A small captioner, ViT and GPT-2 as a `VisionEncoderDecoderModel`: its tokenizer, network, and
the trained folder as a function.

Built and saved with `transformers`, so that our loader is tested on a folder that the library
wrote.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    GPT2Config,
    GPT2Tokenizer,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from export.training.functions import CaptionFunction, in_batches

END_OF_TEXT = "<|endoftext|>"
IGNORED = -100  # labels that cross entropy skips
PATCH = 8
"""Side of the encoder's patches, in pixels."""


def build_tokenizer(
    folder: Path, captions: Iterable[str], pieces: int, max_tokens: int
) -> GPT2Tokenizer:
    """A byte-level BPE in GPT-2's format, learnt from captions and saved into the folder."""
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator(
        captions, vocab_size=pieces, special_tokens=[END_OF_TEXT], show_progress=False
    )
    vocabulary, merges = learner.save_model(str(folder))
    tokenizer = GPT2Tokenizer(
        vocab=vocabulary, merges=merges, pad_token=END_OF_TEXT, model_max_length=max_tokens
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def build_model(
    tokenizer: GPT2Tokenizer,
    *,
    side: int,
    max_tokens: int,
    dropout: float = 0.0,
) -> VisionEncoderDecoderModel:
    """An untrained captioner; encoder and decoder differ in width, so a projection joins them.

    Args:
        side: Of the pictures, in pixels; a multiple of `PATCH`.
        max_tokens: Of a caption, with the start token.
        dropout: None by default: where every picture is new, there is nothing to overfit.
    """
    encoder = ViTConfig(
        image_size=side,
        patch_size=PATCH,
        hidden_size=160,
        num_hidden_layers=4,
        num_attention_heads=5,
        intermediate_size=480,
        hidden_dropout_prob=dropout,
    )
    end = tokenizer.eos_token_id
    decoder = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=2 * max_tokens,
        n_embd=128,
        n_layer=2,
        n_head=4,
        add_cross_attention=True,
        is_decoder=True,  # type: ignore[call-arg]  # a field of every configuration
        bos_token_id=end,
        eos_token_id=end,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = end
    model = VisionEncoderDecoderModel(config)
    generation = model.generation_config
    generation._from_model_config = (
        False  # without it, loaders treat the file as a copy of config.json
    )
    generation.decoder_start_token_id = generation.bos_token_id = end
    generation.eos_token_id = generation.pad_token_id = end
    generation.max_length = max_tokens
    generation.num_beams = 1
    return model


def captioner(folder: Path, batch: int = 50) -> CaptionFunction:
    """A function from pictures to greedy captions, by `transformers` alone, from a saved folder."""
    model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = GPT2Tokenizer.from_pretrained(folder)
    processor = ViTImageProcessorPil.from_pretrained(folder)

    @torch.inference_mode()
    def caption(pictures: list[Image.Image]) -> list[str]:
        pixels = processor(pictures, return_tensors="pt").pixel_values
        tokens = model.generate(pixels, num_beams=1, do_sample=False)
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    return in_batches(caption, batch)


def normalised(pixels: NDArray[Any], mean: list[float], deviation: list[float]) -> torch.Tensor:
    """(B, height, width, 3) uint8 → (B, 3, height, width)."""
    channels = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    shape = (1, 3, 1, 1)
    return (channels - torch.tensor(mean).view(shape)) / torch.tensor(deviation).view(shape)
