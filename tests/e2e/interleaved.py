"""A small random Idefics with a tokenizer of words: checkpoint, bundle, and in `transformers`."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import IdeficsForVisionText2Text, PreTrainedTokenizerFast
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from export.pipeline.cli import export
from tests.export.twins import make_twin
from tests.pictures import blocks

NAME = "twin-idefics"
REPOSITORY = "model_repository"
NEW_TOKENS = 8
_WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(57))]
_ADDED = ["<fake_token_around_image>", "<image>", "w57", "w58"]


@dataclass(frozen=True)
class Original:
    """The checkpoint in `transformers`."""

    model: Any
    processor: IdeficsProcessor

    @classmethod
    def read(cls, folder: Path) -> Original:
        """The checkpoint in a folder that `export_interleaved` has filled."""
        checkpoint = folder / NAME
        model = IdeficsForVisionText2Text.from_pretrained(checkpoint).eval()
        recipe = IdeficsImageProcessorPil.from_pretrained(checkpoint)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        return cls(model, IdeficsProcessor(recipe, tokenizer))

    def outputs(self, prompt: str, images: list[bytes], beams: int = 1) -> list[str]:
        """All hypotheses of one prompt, as text behind it."""
        opened = iter([Image.open(io.BytesIO(image)) for image in images])
        parts: list[Any] = []
        for index, part in enumerate(prompt.split("<image>")):
            parts += [next(opened)] if index else []
            parts += [part] if part.strip(" ") else []
        inputs = self.processor(text=[parts], return_tensors="pt")
        with torch.no_grad():
            tokens = self.model.generate(
                **inputs,
                max_new_tokens=NEW_TOKENS,
                num_beams=beams,
                num_return_sequences=beams,
                do_sample=False,
                pad_token_id=0,
            )
        behind = tokens[:, inputs["input_ids"].shape[1] :]
        return self.processor.tokenizer.batch_decode(behind, skip_special_tokens=True)


def export_interleaved(folder: Path) -> None:
    """Write the tests' twin with its tokenizer and its image recipe, and export it."""
    checkpoint = folder / NAME
    checkpoint.mkdir()
    make_twin("idefics", "odd", checkpoint)
    backend = Tokenizer(models.WordLevel(dict(zip(_WORDS, range(60), strict=True)), unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(text) for text in ("<pad>", "<s>", "</s>")])
    backend.add_special_tokens([AddedToken(text) for text in _ADDED])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="w0",
    )
    recipe = IdeficsImageProcessorPil(image_size=32)
    for part in (tokenizer, recipe):
        part.save_pretrained(checkpoint)
    export(str(checkpoint), repository=folder / REPOSITORY)


def random_pictures(count: int) -> list[bytes]:
    """PNGs of random blocks, of another size than the model's."""
    random = np.random.default_rng(3)
    return [blocks(random) for _ in range(count)]
