"""Trains the example CLIP: small vision and text towers in Hugging Face's CLIP format.

Built, trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote.
"""

import json
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    BatchEncoding,
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
from examples.clip.families import SLOT_CLASSES, UNSAID, Description, families, matches, slots
from examples.clip.shots import FAMILIAR
from examples.scenes.captions import label
from examples.scenes.rendering import SIDE, render
from examples.scenes.scene import pick, scenes
from examples.scenes.scores import (
    CHOICES,
    TEMPLATE,
    TEST_SCENES,
    TEST_SEED,
    ClassifyFunction,
    swapped_zero_shot_top1,
    zero_shot_top1,
)
from examples.training.checkpoint_folder import run_line, save_half, write_card
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
_FAMILY = 6  # scenes that differ in one attribute
_MOVED = 2  # of which at least so many differ in their relation, once training is resumed
_READING_STEPS = 800
_SAMPLE = 64  # pictures for the statistics of the first norm
_TEMPLATES = (TEMPLATE, *FAMILIAR)  # the default of the zero-shot route twice as often


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
    torch.manual_seed(arguments.seed)
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
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
    stream = families(sys.maxsize, _FAMILY, arguments.seed, moved)
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
    texts = map(str.format, cycle(_TEMPLATES), labels)
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
        return [one for _ in range(batch // _FAMILY) for one in next(self._families)]

    def _tokens(self, drawn: list[Description]) -> BatchEncoding:
        texts = [pick(self._rng, _TEMPLATES).format(one.text) for one in drawn]
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


def report(folder: Path, run: str, is_resumed: bool) -> None:
    """Scores the saved folder on held-out scenes, prints the scores and writes the model card."""
    classify = classifier(folder)
    scores = {
        f"true label first among {CHOICES} that differ in one attribute": zero_shot_top1(
            classify, TEST_SCENES, TEST_SEED
        ),
        "the same labels, pictures swapped": swapped_zero_shot_top1(
            classify, TEST_SCENES, TEST_SEED
        ),
    }
    print(scores)
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
