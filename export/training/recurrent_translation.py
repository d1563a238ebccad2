"""Trains the translator of Bahdanau, Cho and Bengio on a user's parallel text: `triptych train
translate --architecture bahdanau`.

The network and optimisation of `bahdanau.py`, resumable like `translation.py`. Words are its units,
so that it returns which word was translated from which.
"""

from __future__ import annotations

import json
from functools import partial

import torch
from tokenizers import Tokenizer

from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.training.bahdanau import (
    MAX_POSITIONS,
    NETWORK,
    batch_loss,
    batch_of,
    initialise,
    optimisation,
    save,
    teacher_forced,
    translator,
    word_level,
    write_settings,
)
from export.training.marian import Example, batches
from export.training.optimisation import Progress
from export.training.parallel_text import ParallelText
from export.training.resumable_training import HeldOutScore, endless, optimise
from export.training.training_folder import TrainingFolder
from export.training.translation import Recipe, score, write_translator_card
from inference.errors import SetupError

_MARKS = r"[^\w\s'▁]"
"""Characters that are words of their own; ▁ stands for a space."""


def train(
    folder: TrainingFolder, text: ParallelText, recipe: Recipe, progress: Progress
) -> HeldOutScore:
    """Trains, or continues, and writes the checkpoint and its card.

    Raises:
        SetupError: Every line is too long.
    """
    kept, held = text.split(recipe.held_out, recipe.seed)
    tokenizer = word_level([*kept.sources, *kept.targets], _MARKS, 2 * recipe.pieces)
    write_settings(folder.folder, tokenizer, NETWORK, recipe.languages)
    config = json.loads((folder.folder / "config.json").read_text(encoding="utf-8"))
    torch.manual_seed(recipe.seed)
    model = Bahdanau(read_config(config))
    initialise(model)
    logits = partial(teacher_forced, model)
    optimise(
        model,
        optimisation(model, recipe.steps),
        endless(partial(batches, encode(kept, tokenizer)), recipe.seed),
        lambda batch: batch_loss(
            logits, batch_of([each.source for each in batch], [each.target for each in batch])
        ),
        recipe.steps,
        folder,
        progress,
    )
    save(model, folder.folder)
    folder.finish()
    found = score(translator(folder.folder, 1), held)
    parameters = sum(weight.numel() for weight in model.parameters())
    write_translator_card(folder.folder, "recurrent", parameters, len(kept.sources), found, recipe)
    return found


def encode(text: ParallelText, tokenizer: Tokenizer) -> list[Example]:
    """The pairs that fit into the network's positions.

    Raises:
        SetupError: None of them does.
    """
    sides = [
        [line.ids for line in tokenizer.encode_batch(lines)]
        for lines in (text.sources, text.targets)
    ]
    examples = [Example(*pair) for pair in zip(*sides, strict=True)]
    fitting = [one for one in examples if max(len(one.source), len(one.target)) <= MAX_POSITIONS]
    if not fitting:
        raise SetupError(f"every line has more than {MAX_POSITIONS - 1} words")
    return fitting
