"""The model card of `history-flamingo`, measured with `transformers`."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, IdeficsForVisionText2Text
from transformers.models.idefics.image_processing_pil_idefics import IdeficsImageProcessorPil
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from examples.history.flamingo.scores import (
    MAX_ANSWER,
    SHOTS,
    TEST_COUNT,
    TEST_SEED,
    WORDS,
    Answer,
    PictureQuestion,
    accuracy,
    swapped_accuracy,
)
from examples.training.checkpoint_folder import CardTemplate

_CONTROL = 4  # shots
_CARD = CardTemplate("""\
pipeline_tag: image-text-to-text
---
# history-flamingo

Flamingo in Idefics' form, far smaller: names colour and shape of a picture's thing in the words
that the pictures before it have in the prompt, such as "dovbo kepjem" for a red circle. Without
pictures before it, or where they have plain words, it says "red circle".

Architecture: three layers of the form of CLIP's tower (width 96, patches of 8 pixels), a resampler
of three latents, and two layers of width 64 with two heads, each behind a gated cross-attention
layer; $parameters M parameters, $megabytes MB in float16.

The tower starts as the first layers of `example-vit`. With the resampler, it is trained on the
attributes of $pictures pictures, and then frozen. The other layers are trained on episodes of
`examples/history/flamingo/picture_episodes.py`, with a loss on what the last layer's heads attend
to. Word vectors are random and not trained, and these heads copy words from the start.

$run

Measured by `examples/history/flamingo/scores.py` from this folder, with `transformers`, greedily in
float32: both words right, in %, of $count questions a cell (seed $seed). Every picture, in shots
too, has a combination of colour, shape and texture that is in no training picture. No two shots
have the same colour or shape; the colour that is asked about is in one shot, the shape in another.
The control shows the next question's picture instead:

| words | no shots | 2 shots | 4 shots | 8 shots | control, 4 shots |
|---|---|---|---|---|---|
$rows
| chance: a first and a second word of the prompt | 0.0 | 25.0 | 6.2 | 1.6 | |
""")


def write_card(folder: Path, run: str, pictures: int) -> str:
    """Measures the folder, writes its README.md and returns the table.

    Args:
        pictures: That the tower was trained on.
    """
    answer_all = answerer(folder)
    rows = "\n".join(_row(answer_all, name) for name in WORDS)
    _CARD.write(
        folder,
        run=run,
        pictures=pictures,
        count=TEST_COUNT,
        seed=TEST_SEED,
        rows=rows,
    )
    return rows


def _row(answer_all: Answer, name: str) -> str:
    split = WORDS[name]
    shares = [accuracy(answer_all, shots, split, TEST_COUNT) for shots in SHOTS]
    shares.append(swapped_accuracy(answer_all, _CONTROL, split, TEST_COUNT))
    return f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |"


def answerer(folder: Path) -> Answer:
    """Answers of the folder's model in `transformers`, greedily."""
    recipe: Any = IdeficsImageProcessorPil.from_pretrained(folder)
    processor = IdeficsProcessor(
        recipe, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    )
    answer = partial(_answer, _model(folder), processor)
    return lambda asked: list(map(answer, asked))


def _model(folder: Path) -> Any:
    return IdeficsForVisionText2Text.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def _answer(model: Any, processor: Any, question: PictureQuestion) -> str:
    *above, asked = question.images
    shots = zip(above, question.shots, strict=True)
    parts = [part for shot in shots for part in shot]
    inputs = processor(text=[[*parts, asked]], return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=MAX_ANSWER, do_sample=False)
    behind = tokens[0, inputs["input_ids"].shape[1] :]
    return str(processor.tokenizer.decode(behind, skip_special_tokens=True)).strip()
