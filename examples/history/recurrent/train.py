"""Trains the recurrent examples: two language models, a tagger, sentiments and languages.

python -m examples.history.recurrent.train --only history-rnn-tagger
"""

import argparse
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples import HISTORY_CHECKPOINTS
from examples.history.recurrent.card import write_card
from examples.history.recurrent.networks import (
    Network,
    configuration,
    initialise,
    save,
    save_tokenizer,
)
from examples.history.recurrent.tasks import (
    Characters,
    Languages,
    PartsOfSpeech,
    RecurrentSentiments,
    RecurrentTask,
    Words,
)
from examples.training.checkpoint_folder import run_line
from examples.training.loop import Recipe, train

MODULE = "examples.history.recurrent.train"


@dataclass(frozen=True)
class Example:
    """A folder, its task, its sizes as in `config.json`, and its training recipe."""

    folder: str
    task: type[RecurrentTask[Any]]
    sizes: Mapping[str, Any]
    steps: int
    batch: int
    peak_lr: float


EXAMPLES = (
    Example(
        "history-rnn-lm-chars",
        Characters,
        {"cell": "lstm", "embedding_size": 24, "hidden_size": 224},
        steps=500,
        batch=32,
        peak_lr=6e-3,
    ),
    Example(
        "history-rnn-lm-words",
        Words,
        {"cell": "lstm", "embedding_size": 64, "hidden_size": 96},
        steps=600,
        batch=64,
        peak_lr=6e-3,
    ),
    Example(
        "history-lstmn-lm-words",
        Words,
        {
            "model_type": "lstmn-lm",
            "cell": "lstm",
            "embedding_size": 64,
            "hidden_size": 88,
            "attention_size": 64,
        },
        steps=600,
        batch=64,
        peak_lr=6e-3,
    ),
    Example(
        "history-nas-lm-words",
        Words,
        {"cell": "nas", "embedding_size": 64, "hidden_size": 76},
        steps=600,
        batch=64,
        peak_lr=6e-3,
    ),
    Example(
        "history-rnn-tagger",
        PartsOfSpeech,
        {"cell": "lstm", "embedding_size": 48, "hidden_size": 48, "bidirectional": True},
        steps=1000,
        batch=64,
        peak_lr=6e-3,
    ),
    Example(
        "history-rnn-sentiment",
        RecurrentSentiments,
        {"cell": "lstm", "embedding_size": 48, "hidden_size": 96},
        steps=2500,
        batch=64,
        peak_lr=4e-3,
    ),
    Example(
        "history-rnn-languages",
        Languages,
        {"cell": "gru-reset-after", "embedding_size": 24, "hidden_size": 128},
        steps=800,
        batch=64,
        peak_lr=4e-3,
    ),
)


def main() -> None:
    """Trains, saves, scores and describes the folders."""
    arguments = parse_arguments()
    for example in EXAMPLES:
        if arguments.only in ("", example.folder):
            torch.manual_seed(arguments.seed)
            train_example(example, Namespace(**{**vars(arguments), "only": example.folder}))


def parse_arguments() -> Namespace:
    """Flags of `python -m examples.history.recurrent.train`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--only", default="", metavar="FOLDER", help="such as history-rnn-tagger")
    parser.add_argument("--steps", type=int, help="instead of the example's own number")
    parser.add_argument("--cell", help="instead of the example's own: rnn, lstm, gru-reset-after")
    parser.add_argument("--hidden-size", type=int, help="instead of the example's own")
    parser.add_argument("--output", type=Path, default=HISTORY_CHECKPOINTS, metavar="DIR")
    return parser.parse_args()


def train_example(example: Example, arguments: Namespace) -> None:
    """Trains one folder and writes its weights, tokenizer and card."""
    folder = arguments.output / example.folder
    folder.mkdir(parents=True, exist_ok=True)
    task = example.task(arguments.seed)
    chosen = {"cell": arguments.cell, "hidden_size": arguments.hidden_size}
    sizes = {**example.sizes, **{name: value for name, value in chosen.items() if value}}
    vocabulary, longest = task.tokenizer.get_vocab_size(), task.longest + 2
    network = Network(configuration(task.kind, vocabulary, longest, task.labels, sizes))
    initialise(network)
    recipe = Recipe(
        arguments.steps or example.steps, arguments.seed, example.batch, example.peak_lr
    )
    minutes = train(network, lambda step: task.loss(network, recipe.batch), recipe)
    save(network, folder)
    save_tokenizer(task.tokenizer, folder, longest)
    run = run_line(MODULE, arguments, "texts", recipe.pictures, minutes)
    print(write_card(folder, run))


if __name__ == "__main__":
    main()
