"""Trains `history-seq2seq-*`, `history-attention` or `history-transformer` on the gazette.

The same sentences, words, steps and number of parameters for all; `examples/en_fr/train.py`
has the data.

    python -m examples.history.gazette.train --system initial
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from examples import checkpoint
from examples.en_fr.train import train_translator
from examples.history.gazette.card import write_card
from examples.history.gazette.networks import CONFIGS, network
from export.training.bahdanau import save, write_settings

FOLDERS = {
    "initial": "history-seq2seq-initial",
    "context": "history-seq2seq-context",
    "mean": "history-seq2seq-mean",
    "attention": "history-attention",
    "transformer": "history-transformer",
}
WORDS = checkpoint("example-en-fr") / "tokenizer.json"
"""The words of `examples/en_fr`."""


def main() -> None:
    """Trains, saves, measures what was saved and writes the model card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--system", choices=CONFIGS, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="default: the system's checkpoint")
    parser.add_argument("--card", action="store_true", help="only measure a trained checkpoint")
    options = parser.parse_args()
    folder = options.output or checkpoint(FOLDERS[options.system])
    if not options.card:
        train(options.system, folder, options.steps, options.seed)
    run = "python -m examples.history.gazette.train"
    command = f"{run} --system {options.system} --steps {options.steps}"
    print(write_card(folder, command=command, steps=options.steps, seed=options.seed))


def train(system: str, folder: Path, steps: int, seed: int) -> None:
    """Writes the checkpoint of a system."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = Tokenizer.from_file(str(WORDS))
    write_settings(folder, tokenizer, CONFIGS[system])
    model = network(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    minutes = train_translator(model, model, tokenizer, steps, seed)
    save(model, folder)
    print(f"trained in {minutes:.1f} minutes, saved in {folder}", flush=True)


if __name__ == "__main__":
    main()
