"""Trains the example captioner: a small ViT + GPT-2 in Hugging Face's VisionEncoderDecoder format.

Built, trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
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

from export.examples.scenes.captions import caption
from export.examples.scenes.rendering import SIDE
from export.examples.scenes.scene import scenes
from export.examples.scores.scenes import (
    TEST_SCENES,
    TEST_SEED,
    CaptionFunction,
    caption_exact_match,
    swapped_caption_match,
)
from export.examples.training.caption_batches import END_OF_TEXT, CaptionBatches
from export.examples.training.checkpoint_folder import run_line, save_half, write_card
from export.examples.training.loop import (
    PatchClassification,
    command_line,
    pixel_tensor,
    train_in_stages,
)

MODULE = "export.examples.training.captioner"
OUTPUT = Path(__file__).parents[1] / "checkpoints" / "example-captioner"
_TOKENIZER_SCENES = 20_000
_VOCABULARY = 512
_MAX_TOKENS = 32
PATCH = 8
"""Side of the encoder's patches, in pixels."""


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    parser = command_line(__doc__, OUTPUT, steps=3000)
    parser.add_argument(
        "--swap-words",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of wrong attributes in the decoder's input (%(default)s)",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    if arguments.resume:
        tokenizer = GPT2Tokenizer.from_pretrained(folder)
        model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32)
    else:
        captions = (caption(scene) for scene in scenes("train", _TOKENIZER_SCENES, arguments.seed))
        tokenizer = build_tokenizer(folder, captions)
        model = build_model(tokenizer)

    captioning = Captioning(model, tokenizer, processor, arguments)
    pretraining = PatchClassification.of_vit(model.encoder, captioning.pixels, arguments)
    pictures, minutes = train_in_stages(model, captioning.loss, pretraining, arguments)
    save_half(model, folder)
    report(folder, run_line(MODULE, arguments, "pictures", pictures, minutes), arguments.resume)


def build_tokenizer(
    folder: Path, captions: Iterable[str], pieces: int = _VOCABULARY, max_tokens: int = _MAX_TOKENS
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
    side: int = SIDE,
    max_tokens: int = _MAX_TOKENS,
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
    def caption_all(pictures: list[Image.Image]) -> list[str]:
        captions = []
        for start in range(0, len(pictures), batch):
            pixels = processor(pictures[start : start + batch], return_tensors="pt").pixel_values
            tokens = model.generate(pixels, num_beams=1, do_sample=False)
            captions += tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return captions

    return caption_all


class Captioning:
    """The loss of the canonical captions of freshly drawn training scenes."""

    def __init__(
        self,
        model: VisionEncoderDecoderModel,
        tokenizer: GPT2Tokenizer,
        processor: ViTImageProcessorPil,
        arguments: argparse.Namespace,
    ) -> None:
        self._model = model
        self._processor = processor
        self._batches = CaptionBatches(tokenizer, arguments)

    def loss(self, step: int, batch: int) -> torch.Tensor:
        """Mean cross entropy over the caption tokens of the next `batch` scenes."""
        pictures, read, labels = self._batches.draw(step, batch)
        return self._model(
            pixel_values=self.pixels(pictures), labels=labels, decoder_input_ids=read
        ).loss

    def pixels(self, pictures: list[Image.Image]) -> torch.Tensor:
        """The pictures, preprocessed as in the saved image recipe."""
        return pixel_tensor(pictures, self._processor.image_mean, self._processor.image_std)


def report(folder: Path, run: str, is_resumed: bool) -> None:
    """Scores the saved folder on held-out scenes, prints the scores and writes the model card."""
    caption_all = captioner(folder)
    scores = {
        "captions that match word for word": caption_exact_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
        "the same captions, pictures swapped": swapped_caption_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
    }
    print(scores)
    write_card(
        folder,
        run,
        scores,
        is_resumed=is_resumed,
        name="example-captioner",
        pipeline="image-to-text",
        summary="Describes rendered scenes of one or two things before a background, such as\n"
        '"a large red striped circle to the left of a small blue square on a green background".',
        architecture="`VisionEncoderDecoderModel`: ViT (4 layers of width 160, patches of 8 pixels)"
        " and GPT-2 (2 layers of width 128, byte-level BPE)",
    )


if __name__ == "__main__":
    main()
