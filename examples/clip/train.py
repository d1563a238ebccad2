"""Trains the example CLIP: small vision and text towers in Hugging Face's CLIP format.

Built, trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote.
"""

import json
import sys
from itertools import cycle
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTokenizer,
    CLIPVisionConfig,
    VisionEncoderDecoderModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.clip.contrast import FAMILY, TEMPLATES, Contrast, families
from examples.scenes.rendering import SIDE, render
from examples.scenes.scene import label, scenes
from examples.scenes.scores import (
    CHOICES,
    TEMPLATE,
    TEST_SCENES,
    TEST_SEED,
    ClassifyFunction,
    swapped_zero_shot_top1,
    zero_shot_top1,
)
from examples.training.checkpoint_folder import run_line, save_half, start, write_card
from examples.training.loop import (
    PatchClassification,
    Recipe,
    command_line,
    pixel_tensor,
    train,
    train_in_stages,
)
from examples.training.vision_initialisation import fit_first_norm, initialise_vision_tower

MODULE = "examples.clip.train"
OUTPUT = checkpoint("example-clip")
START, END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"
_TOKENIZER_SCENES = 20_000
_MAX_TOKENS = 48
_MOVED = 2  # of which at least so many differ in their relation, once training is resumed
_READING_STEPS = 800
_SAMPLE = 64  # pictures for the statistics of the first norm


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    parser = command_line(__doc__, OUTPUT, steps=3000)
    parser.add_argument(
        "--name-slots",
        action="store_true",
        help="also predict the attributes by position from both embeddings",
    )
    parser.add_argument(
        "--vision-of",
        type=Path,
        metavar="DIR",
        help="initialise the vision tower from the encoder of this captioner",
    )
    arguments = parser.parse_args()
    folder = start(arguments)
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    processor.save_pretrained(folder)
    if arguments.resume:
        tokenizer = CLIPTokenizer.from_pretrained(folder)
        model = CLIPModel.from_pretrained(folder, dtype=torch.float32)
    else:
        tokenizer = build_tokenizer(arguments.seed)
        tokenizer.save_pretrained(folder)
        tokenizer.backend_tokenizer.model.save(str(folder))  # vocab.json and merges.txt
        model = build_model(tokenizer)
    if arguments.vision_of:
        copy_encoder(arguments.vision_of, model, processor, arguments.seed)

    moved = _MOVED if arguments.resume else 0
    stream = families(sys.maxsize, FAMILY, arguments.seed, moved)
    contrast = Contrast(model, tokenizer, processor, stream, arguments.name_slots)
    pretraining = PatchClassification.of_vit(model.vision_model, contrast.pixels, arguments)
    reading_minutes = 0.0
    if arguments.name_slots:
        reading = Recipe(_READING_STEPS, arguments.seed, batch=192, peak_lr=1e-3)
        reading_minutes = train(contrast, lambda _step: contrast.read(reading.batch), reading)
    pictures, minutes = train_in_stages(contrast, contrast.loss, pretraining, arguments)
    minutes += reading_minutes
    save_half(model, folder)
    report(folder, run_line(MODULE, arguments, "pictures", pictures, minutes), arguments.resume)


def build_tokenizer(seed: int) -> CLIPTokenizer:
    """A byte-pair encoding in CLIP's format: bytes, bytes that end a word, merges, two marks."""
    empty = CLIPTokenizer()
    learner = Tokenizer(models.BPE(end_of_word_suffix=_WORD_END))
    learner.normalizer = empty.backend_tokenizer.normalizer
    learner.pre_tokenizer = empty.backend_tokenizer.pre_tokenizer
    labels = (label(scene) for scene in scenes("train", _TOKENIZER_SCENES, seed))
    texts = map(str.format, cycle(TEMPLATES), labels)
    trainer = trainers.BpeTrainer(end_of_word_suffix=_WORD_END, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    merges = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(letter + _WORD_END for letter in alphabet)]
    words += ["".join(merge) for merge in merges]
    vocabulary = {word: index for index, word in enumerate([*dict.fromkeys(words), START, END])}
    return CLIPTokenizer(
        vocab=vocabulary,
        merges=merges,  # type: ignore[arg-type]  # pairs, which the annotation leaves out
        model_max_length=_MAX_TOKENS,
    )


def build_model(tokenizer: CLIPTokenizer) -> CLIPModel:
    """An untrained CLIP with towers of different width and depth."""
    vision = CLIPVisionConfig(
        image_size=SIDE,
        patch_size=8,
        hidden_size=160,
        num_hidden_layers=5,
        num_attention_heads=5,
        intermediate_size=480,
    )
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=_MAX_TOKENS,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128))


def copy_encoder(
    folder: Path, model: CLIPModel, processor: CLIPImageProcessorPil, seed: int
) -> None:
    """Initialises the vision tower from the encoder of the captioner in `folder`."""
    captioner = VisionEncoderDecoderModel.from_pretrained(folder, dtype=torch.float32)
    initialise_vision_tower(
        model, processor, captioner, ViTImageProcessorPil.from_pretrained(folder)
    )
    sample = [render(scene, index) for index, scene in enumerate(scenes("train", _SAMPLE, seed))]
    pixels = pixel_tensor(sample, processor.image_mean, processor.image_std)
    fit_first_norm(model, pixels)


def classifier(folder: Path) -> ClassifyFunction:
    """A zero-shot classifier by `transformers` alone, from a saved folder."""
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    processor = CLIPImageProcessorPil.from_pretrained(folder)

    @torch.inference_mode()
    def classify(picture: Image.Image, labels: list[str]) -> str:
        texts = tokenizer(
            [TEMPLATE.format(text) for text in labels], padding=True, return_tensors="pt"
        )
        pixels = processor([picture], return_tensors="pt").pixel_values
        scores = model(**texts, pixel_values=pixels).logits_per_image[0]
        return labels[int(scores.argmax())]

    return classify


def report(folder: Path, run: str, is_resumed: bool) -> None:
    """Scores the saved folder on held-out scenes and writes the model card."""
    classify = classifier(folder)
    scores = {
        f"true label first among {CHOICES} that differ in one attribute": zero_shot_top1(
            classify, TEST_SCENES, TEST_SEED
        ),
        "the same labels, pictures swapped": swapped_zero_shot_top1(
            classify, TEST_SCENES, TEST_SEED
        ),
    }
    write_card(
        folder,
        run,
        scores,
        is_resumed=is_resumed,
        name="example-clip",
        pipeline="zero-shot-image-classification",
        summary="Classifies small rendered scenes of one or two things by text labels. Labels go"
        f' into "{TEMPLATE}":\n"red striped circle", or "large red circle above a small blue ring'
        ' on a gray background".\nSize, colour and background are optional; a thing without a'
        " texture word is plain.",
        architecture="`CLIPModel`: vision tower (5 layers of width 160, patches of 8 pixels), text"
        " tower (3 layers of width 128), projection to 128",
    )


if __name__ == "__main__":
    main()
