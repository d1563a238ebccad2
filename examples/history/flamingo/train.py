"""Trains `history-flamingo`: words for colours and shapes, read from the pictures above.

Built and saved with `transformers` as an Idefics, so that our loader is tested on a folder that the
library wrote. In two stages: image tower and resampler learn attributes of pictures; then they are
frozen, their latents computed once, and the layers between the words learn to read episodes.

    python -m examples.history.flamingo.train
"""

import argparse
import time

import torch

from examples import checkpoint
from examples.history.flamingo.card import write_card
from examples.history.flamingo.lessons import Lessons
from examples.history.flamingo.model import (
    AttributeTask,
    build_model,
    build_recipe,
    build_tokenizer,
    copy_tower,
)
from examples.history.flamingo.picture_episodes import Pool
from examples.training.checkpoint_folder import run_line, save_half, start, training_flags
from examples.training.loop import Recipe, train

MODULE = "examples.history.flamingo.train"
OUTPUT = checkpoint("history-flamingo")
PICTURES = 12_000
_PICTURE_BATCH, _PICTURE_LR = 64, 1.5e-3
_EPISODE_BATCH, _EPISODE_LR = 48, 3e-3


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = _arguments()
    folder, begun = start(arguments), time.perf_counter()
    torch.set_num_threads(1)
    tokenizer, recipe = build_tokenizer(), build_recipe()
    for part in (tokenizer, recipe):
        part.save_pretrained(folder)
    model = build_model(len(tokenizer) - 2)
    pool = Pool.drawn("train", PICTURES, arguments.seed)
    copy_tower(model, recipe, pool)

    attributes = AttributeTask(model, recipe, pool)
    looking = Recipe(arguments.picture_steps, arguments.seed, _PICTURE_BATCH, _PICTURE_LR)
    train(attributes, lambda _: attributes.loss(looking.batch), looking)
    attributes.requires_grad_(False)
    held_out = attributes.accuracies(Pool.drawn("heldout", 1000, arguments.seed))
    print(f"attributes of withheld combinations: {held_out}")

    lessons = Lessons(model, tokenizer, pool, attributes.read(pool), arguments.seed)
    reading = Recipe(arguments.steps, arguments.seed, _EPISODE_BATCH, _EPISODE_LR)
    train(model, lambda _: lessons.loss(reading.batch), reading)
    save_half(model, folder)
    minutes = (time.perf_counter() - begun) / 60
    run = run_line(MODULE, arguments, "episodes", reading.pictures, minutes)
    print(write_card(folder, run, PICTURES))


def _arguments() -> argparse.Namespace:
    parser = training_flags(__doc__, OUTPUT, 1500, "training steps on episodes")
    parser.add_argument(
        "--picture-steps",
        type=int,
        default=1600,
        metavar="N",
        help="training steps before them, on attributes of pictures (%(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
