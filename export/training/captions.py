"""Trains a small captioner on a user's captioned pictures: `triptych train caption`.

The network is ViT with GPT-2; it has dropout because pictures repeat, and a state to resume from. A
resumed training gives the weights of an uninterrupted one on the same machine with the same number
of threads. `captioner` is a trained folder as a function.

Built and saved with `transformers`, so that our loader is tested on a folder that the library
wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from string import Template
from typing import Any, NamedTuple

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

from export.training.captioned_pictures import CaptionedPictures
from export.training.functions import CaptionFunction, in_batches
from export.training.resumable_training import (
    HeldOutScore,
    Progress,
    TrainingFolder,
    adamw,
    endless,
    optimise,
    weight_groups,
    write_card,
)
from inference.bundle.inputs import ImageSpec
from inference.errors import SetupError

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
    tokenizer: GPT2Tokenizer, *, side: int, max_tokens: int, dropout: float = 0.0
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
    # without it, loaders treat the file as a copy of config.json
    generation._from_model_config = False
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


MAX_TOKENS = 128
"""Of a caption with its end; longer captions are left out."""
_DROPOUT = 0.1
_BATCH, _PEAK_LR = 32, 1e-3
_CARD = Template("""\
---
pipeline_tag: image-to-text
tags: [triptych]
---
# $name

A small captioner ($parameters parameters) of pictures of $side x $side pixels: ViT and GPT-2 as a
`VisionEncoderDecoderModel`, trained by `triptych train caption` on $pictures pictures with
$captions captions: $steps steps, seed $seed.

On $held_out held-out pictures, greedy: BLEU $bleu (sacrebleu), $exact % exact.
""")


@dataclass(frozen=True)
class Recipe:
    """What `triptych train caption` is given, beside the pictures.

    Attributes:
        side: To which pictures are resized, in pixels; a multiple of `PATCH`.
        pieces: Size of the byte-level BPE vocabulary, at most.
        held_out: Pictures kept out of training for the score.
    """

    side: int
    steps: int
    seed: int
    pieces: int
    held_out: int

    @property
    def processor(self) -> ViTImageProcessorPil:
        """The image recipe of the checkpoint."""
        return ViTImageProcessorPil(size={"height": self.side, "width": self.side})

    @property
    def spec(self) -> ImageSpec:
        """The processor's recipe as an `ImageSpec`."""
        own: Any = self.processor
        return ImageSpec(
            resize="exact",
            size=(self.side, self.side),
            resample=int(own.resample),
            mean=tuple(own.image_mean),
            std=tuple(own.image_std),
            rescale=own.rescale_factor,
        )


class Example(NamedTuple):
    """A picture by its number, and the tokens of one of its captions, the end included."""

    picture: int
    tokens: list[int]


def settings(pictures: CaptionedPictures, recipe: Recipe) -> dict[str, Any]:
    """What decides the result of a training."""
    return {"task": "caption", **asdict(recipe), "pictures": pictures.fingerprint}


def train(
    folder: TrainingFolder, pictures: CaptionedPictures, recipe: Recipe, progress: Progress
) -> HeldOutScore:
    """Trains, or continues, and writes the checkpoint and its card.

    Raises:
        SetupError: Every caption is too long.
    """
    kept, held = pictures.split(recipe.held_out, recipe.seed)
    texts = [text for each in kept.captions for text in each]
    tokenizer = build_tokenizer(folder.folder, texts, recipe.pieces, MAX_TOKENS)
    examples = encode(kept, tokenizer)
    recipe.processor.save_pretrained(folder.folder)
    torch.manual_seed(recipe.seed)
    longest = 1 + max(len(each.tokens) for each in examples)  # with the start token
    model = build_model(tokenizer, side=recipe.side, max_tokens=longest, dropout=_DROPOUT)
    optimise(
        model,
        adamw(weight_groups(model), recipe.steps, _PEAK_LR, eps=1e-6),
        endless(partial(batches, examples), recipe.seed),
        Captioning(model, kept, recipe.processor).loss,
        recipe.steps,
        folder,
        progress,
    )
    model.save_pretrained(folder.folder)
    folder.finish()
    found = score(captioner(folder.folder), held)
    counts = {"pictures": len(kept.names), "captions": len(texts)}
    parameters = model.num_parameters()
    write_card(folder.folder, _CARD, asdict(recipe), found, parameters=parameters, **counts)
    return found


def encode(pictures: CaptionedPictures, tokenizer: GPT2Tokenizer) -> list[Example]:
    """Captions that fit, as tokens with an end.

    Raises:
        SetupError: None of them fits.
    """
    examples = [
        Example(row, tokens)
        for row, texts in enumerate(pictures.captions)
        for tokens in tokenizer([text + END_OF_TEXT for text in texts])["input_ids"]
        if len(tokens) <= MAX_TOKENS
    ]
    if not examples:
        raise SetupError(f"every caption has more than {MAX_TOKENS - 1} tokens")
    return examples


def batches(examples: list[Example], epoch: int) -> Iterator[list[Example]]:
    """The batches of an epoch, in an order of its own."""
    order = Random(epoch).sample(examples, len(examples))
    for start in range(0, len(order), _BATCH):
        yield order[start : start + _BATCH]


class Captioning:
    """The loss of captions, given their pictures."""

    def __init__(
        self,
        model: VisionEncoderDecoderModel,
        pictures: CaptionedPictures,
        processor: ViTImageProcessorPil,
    ) -> None:
        self._model, self._pixels = model, pictures.pixels
        self._recipe: tuple[Any, Any] = (processor.image_mean, processor.image_std)

    def loss(self, batch: list[Example]) -> torch.Tensor:
        """Mean cross entropy of a batch's tokens; bfloat16 where autocast allows it."""
        rows = [torch.tensor(each.tokens) for each in batch]
        labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        pixels = normalised(self._pixels[[each.picture for each in batch]], *self._recipe)
        with torch.autocast("cpu", torch.bfloat16):
            found: torch.Tensor = self._model(pixel_values=pixels, labels=labels).loss
        return found


def score(caption_all: CaptionFunction, held: CaptionedPictures) -> HeldOutScore:
    """BLEU and exact matches on the held-out pictures."""
    made = caption_all([Image.fromarray(pixels) for pixels in held.pixels])
    return HeldOutScore.of(made, held.captions)
