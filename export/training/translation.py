"""Trains a small MarianMT translator on a user's parallel text: `triptych train translate`.

The tokenizer, network and optimisation of `marian.py`, on files instead of the
example world, with dropout because lines repeat, and with a state to resume from. A resumed
training gives the weights of an uninterrupted one on the same machine with the same number of
threads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from string import Template
from typing import Any

import torch
from transformers import MarianTokenizer

from export.training.functions import Translate
from export.training.marian import (
    MAX_POSITIONS,
    Example,
    batch_loss,
    batches,
    build_model,
    build_tokenizer,
    encode,
    generation_defaults,
    optimisation,
    translator,
)
from export.training.resumable_training import (
    HeldOutScore,
    Progress,
    TrainingFolder,
    endless,
    optimise,
    write_card,
)
from inference.errors import SetupError

LEAST_PAIRS = 20


@dataclass(frozen=True)
class ParallelText:
    """Pairs of lines.

    Attributes:
        skipped: Number of pairs with an empty side, which are left out.
        fingerprint: Of both sides, all lines.
    """

    sources: list[str]
    targets: list[str]
    skipped: int
    fingerprint: str

    def split(self, held_out: int, seed: int) -> tuple[ParallelText, ParallelText]:
        """Training pairs and held-out ones, drawn by the seed; equal pairs are on one side only."""
        pairs = list(zip(self.sources, self.targets, strict=True))
        order = sorted(set(pairs))
        drawn = set(Random(seed).sample(order, min(held_out, len(order) - 1)))
        sides = [[each for each in pairs if (each in drawn) is wanted] for wanted in (False, True)]
        train, held = (
            ParallelText([a for a, _ in side], [b for _, b in side], 0, self.fingerprint)
            for side in sides
        )
        return train, held


def read_parallel_text(source: Path, target: Path) -> ParallelText:
    """Both files, checked.

    Raises:
        SetupError: A file is missing, empty or not UTF-8, or their numbers of lines differ.
    """
    left, right = _lines(source), _lines(target)
    if len(left) != len(right):
        raise SetupError(
            f"{source} has {len(left)} lines and {target} has {len(right)}: line n of one must be "
            "the translation of line n of the other"
        )
    pairs = [(a, b) for a, b in zip(left, right, strict=True) if a and b]
    if len(set(pairs)) < LEAST_PAIRS:
        raise SetupError(
            f"{source} and {target} have {len(set(pairs))} different pairs of lines with text on "
            f"both sides; training needs at least {LEAST_PAIRS}"
        )
    fingerprint = sha256("\n".join([*left, "", *right]).encode()).hexdigest()
    return ParallelText(
        [a for a, _ in pairs], [b for _, b in pairs], len(left) - len(pairs), fingerprint
    )


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        SetupError: The file is missing, or not UTF-8.
    """
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SetupError(f"{file} does not exist") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SetupError(f"{file} is not UTF-8: line {line} has other bytes") from None


def _lines(file: Path) -> list[str]:
    lines = [line.strip() for line in read_text(file).removesuffix("\n").split("\n")]
    if not any(lines):
        raise SetupError(f"{file} is empty")
    return lines


_DROPOUT = 0.1
_CARD = Template("""\
---
language: [$source, $target]
pipeline_tag: translation
tags: [triptych]
---
# $name

A small $kind translator ($parameters parameters) from $source to $target, trained by `triptych
train translate` on $pairs pairs of lines: $steps steps, seed $seed.

On $held_out held-out pairs, greedy: BLEU $bleu (sacrebleu), $exact % exact.
""")


@dataclass(frozen=True)
class Recipe:
    """What `triptych train translate` is given, beside the text.

    Attributes:
        languages: Codes of source and target.
        pieces: Size of each sentencepiece vocabulary, at most.
        held_out: Pairs kept out of training for the score.
        architecture: Of the network: "marian" or "bahdanau".
    """

    languages: tuple[str, str]
    steps: int
    seed: int
    pieces: int
    held_out: int
    architecture: str


def settings(text: ParallelText, recipe: Recipe) -> dict[str, Any]:
    """What decides the result of a training."""
    own = asdict(recipe) | {"languages": list(recipe.languages)}  # as JSON gives it back
    return {"task": "translate", **own, "text": text.fingerprint}


def train(
    folder: TrainingFolder, text: ParallelText, recipe: Recipe, progress: Progress
) -> HeldOutScore:
    """Trains, or continues, and writes the checkpoint and its card.

    Raises:
        SetupError: Every line is too long, or there are too few for so many pieces.
    """
    kept, held = text.split(recipe.held_out, recipe.seed)
    tokenizer = _tokenizer(folder.folder, kept, recipe)
    torch.manual_seed(recipe.seed)
    model = build_model(tokenizer, _DROPOUT)
    optimise(
        model,
        optimisation(model, recipe.steps),
        endless(partial(batches, _examples(kept, tokenizer)), recipe.seed),
        lambda batch: batch_loss(model, batch, tokenizer.pad_token_id),
        recipe.steps,
        folder,
        progress,
    )
    model.generation_config = generation_defaults(tokenizer)
    model.config.dropout = 0.0
    model.save_pretrained(folder.folder)
    folder.finish()
    found = score(translator(folder.folder, 1), held)
    name = "MarianMT", model.num_parameters()
    write_translator_card(folder.folder, *name, len(kept.sources), found, recipe)
    return found


def score(translate: Translate, held: ParallelText) -> HeldOutScore:
    """BLEU and exact matches on the held-out pairs."""
    return HeldOutScore.of(translate(held.sources), [[truth] for truth in held.targets])


def _tokenizer(folder: Path, text: ParallelText, recipe: Recipe) -> MarianTokenizer:
    """Trained again when a training is resumed: it depends on the text alone."""
    corpora = [text.sources, text.targets]
    try:
        return build_tokenizer(folder, corpora, recipe.languages, recipe.pieces)
    except RuntimeError as error:  # sentencepiece's
        raise SetupError(f"no vocabulary of {recipe.pieces} pieces: {error}") from error


def _examples(text: ParallelText, tokenizer: MarianTokenizer) -> list[Example]:
    """The pairs that fit into the network's positions."""
    examples = encode(text.sources, text.targets, tokenizer)
    fitting = [one for one in examples if max(len(one.source), len(one.target)) <= MAX_POSITIONS]
    if not fitting:
        raise SetupError(f"every line has more than {MAX_POSITIONS - 1} pieces")
    return fitting


def write_translator_card(
    folder: Path, kind: str, parameters: int, pairs: int, found: HeldOutScore, recipe: Recipe
) -> None:
    """Writes README.md: what was trained, on how many pairs, and its score."""
    source, target = recipe.languages
    fields = {**asdict(recipe), "kind": kind, "source": source, "target": target}
    write_card(folder, _CARD, fields, found, parameters=parameters, pairs=pairs)
