"""Trains `example-es-en`, a small MarianMT translator of the example world's Spanish.

python -m examples.es_en.train
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from transformers import MarianMTModel, MarianTokenizer

from examples.es_en.card import CHECKPOINT, write_card
from examples.texts.grammar import sentences
from examples.training.loop import timed_steps
from export.training.marian import (
    CHUNK,
    Example,
    batch_loss,
    batches,
    build_model,
    build_tokenizer,
    encode,
    generation_defaults,
    optimisation,
)

_PIECES = 1000  # per language, at most
_SPM_SENTENCES = 100_000


def train_translator(
    model: MarianMTModel, tokenizer: MarianTokenizer, steps: int, seed: int
) -> float:
    """Trains in place on freshly generated sentences and returns the minutes it took."""
    stream, pad = _endless_batches(tokenizer, seed), tokenizer.pad_token_id
    return timed_steps(
        model, optimisation(model, steps), lambda _: batch_loss(model, next(stream), pad), steps
    )


def _endless_batches(tokenizer: MarianTokenizer, seed: int) -> Iterator[list[Example]]:
    """Endless batches of new sentences."""
    rng = Random(seed)
    while True:
        fresh = rng.randrange(2**32)
        yield from batches(encode(*_corpora(5 * CHUNK, fresh), tokenizer), fresh)


def _corpora(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Spanish and English of new sentences."""
    pairs = list(sentences("train", count, seed))
    return [pair.spanish for pair in pairs], [pair.english for pair in pairs]


def main() -> None:
    """Trains, saves, measures what was saved and writes the model card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=CHECKPOINT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    corpora = list(_corpora(_SPM_SENTENCES, options.seed))
    tokenizer = build_tokenizer(options.output, corpora, ("es", "en"), _PIECES)
    model = build_model(tokenizer)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{len(tokenizer.encoder)} pieces, {parameters / 1e6:.2f} M parameters", flush=True)
    minutes = train_translator(model, tokenizer, options.steps, options.seed)
    model.generation_config = generation_defaults(tokenizer)
    model.half().save_pretrained(options.output)
    print(f"trained in {minutes:.1f} minutes, saved in {options.output}; measuring", flush=True)
    command = f"python -m examples.es_en.train --steps {options.steps}"
    print(write_card(options.output, command=command, minutes=round(minutes), seed=options.seed))


if __name__ == "__main__":
    main()
