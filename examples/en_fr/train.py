"""Trains `example-en-fr`, a small translator of the gazette with the attention of its paper.

Words are the units, as in the paper (§4.1), so that a column of the alignment is a word. Attention
is learnt from translations alone: the grammar's own alignment measures it and never trains it.

    python -m examples.en_fr.train
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import nn

from examples.en_fr.card import CHECKPOINT, write_card
from examples.en_fr.gazette import GazettePair, sentences
from examples.training.loop import timed_steps
from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.training.bahdanau import (
    NETWORK,
    Batch,
    Predict,
    batch_loss,
    batch_of,
    initialise,
    optimisation,
    save,
    teacher_forced,
    word_level,
    write_settings,
)

_VOCABULARY_SENTENCES = 100_000
_BATCH = 64
_CHUNK = 6400  # sentences sorted by length together


def word_tokenizer(pairs: list[GazettePair]) -> Tokenizer:
    """A tokenizer of all words of both languages; elided words and marks are tokens."""
    return word_level([text for pair in pairs for text in (pair.source, pair.target)], "[.,]")


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """Endless batches of new sentences of similar lengths."""
    rng = Random(seed)
    while True:
        pairs = list(sentences("train", _CHUNK, rng.randrange(2**32)))
        sources = [line.ids for line in tokenizer.encode_batch([p.source for p in pairs])]
        targets = [line.ids for line in tokenizer.encode_batch([p.target for p in pairs])]
        order = sorted(range(_CHUNK), key=lambda i: (len(sources[i]), len(targets[i])))
        groups = [order[start : start + _BATCH] for start in range(0, _CHUNK, _BATCH)]
        rng.shuffle(groups)
        for group in groups:
            yield batch_of([sources[i] for i in group], [targets[i] for i in group])


def train_translator(
    model: nn.Module, logits: Predict, tokenizer: Tokenizer, steps: int, seed: int
) -> float:
    """Trains in place on freshly generated sentences and returns the minutes it took.

    Gradients are clipped at 1, as in the paper.
    """
    stream = batches(tokenizer, seed)
    return timed_steps(
        model, optimisation(model, steps), lambda _: batch_loss(logits, next(stream)), steps
    )


def main() -> None:
    """Trains, saves, measures what was saved and writes the model card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=CHECKPOINT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = word_tokenizer(list(sentences("train", _VOCABULARY_SENTENCES, options.seed)))
    write_settings(options.output, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((options.output / "config.json").read_text())))
    initialise(model)
    logits = partial(teacher_forced, model)
    minutes = train_translator(model, logits, tokenizer, options.steps, options.seed)
    save(model, options.output)
    print(f"trained in {minutes:.1f} minutes, saved in {options.output}; measuring", flush=True)
    command = f"python -m examples.en_fr.train --steps {options.steps}"
    print(write_card(options.output, command=command, minutes=round(minutes), seed=options.seed))


if __name__ == "__main__":
    main()
