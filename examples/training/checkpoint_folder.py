"""Flags of the training scripts, and the weights and the model card that they write."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from string import Template

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from examples.scenes.scores import TEST_SCENES, TEST_SEED


class CardTemplate(Template):
    """A model card, with `$parameters` (millions) and `$megabytes` of the folder's weights.

    Args:
        text: From the fields of the front matter that are its own; the others are added.
    """

    def __init__(self, text: str) -> None:
        tagged = text.replace("---\n", "tags: [triptych, example]\n---\n", 1)
        super().__init__(f"---\nlicense: apache-2.0\n{tagged}")

    def write(self, folder: Path, facts: Mapping[str, object] = {}, **values: object) -> None:
        """Writes README.md; facts and values stand for names of the template."""
        weights = folder / "model.safetensors"
        with safe_open(weights, framework="numpy") as stored:
            count = sum(stored.get_tensor(name).size for name in stored.keys())  # noqa: SIM118
        size = {
            "parameters": f"{count / 1e6:.2f}",
            "megabytes": f"{weights.stat().st_size / 1e6:.1f}",
        }
        card = self.substitute({"name": folder.name, **size, **facts, **values})
        (folder / "README.md").write_text(card, encoding="utf-8")


_CARD = CardTemplate("""\
pipeline_tag: $pipeline
---
# $name

$summary

Architecture: $architecture; $megabytes MB in float16.

Trained on pictures of the training split of `examples/scenes/scene.py`, each rendered once:

$runs

Measured by `examples/scenes/scores.py` from this folder, in float32, on $count held-out
pictures (seed $test_seed), each with a combination of attributes that is in no training picture:

| | |
|---|---|
$scores
""")
_RUN = "- `python -m "  # prefix of a run's line


def training_flags(
    description: str | None, output: Path, steps: int, counted: str = "training steps"
) -> ArgumentParser:
    """`--steps`, `--seed` and `--output`, which every training script has."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help=f"{counted} (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    folder = "folder to write into (%(default)s)"
    parser.add_argument("--output", type=Path, default=output, metavar="DIR", help=folder)
    return parser


def start(arguments: Namespace) -> Path:
    """Seeds the random numbers and makes the folder to write into."""
    torch.manual_seed(arguments.seed)
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def swap_words_flag(parser: ArgumentParser, share: float = 0.0) -> None:
    """`--swap-words`, which the captioners' training scripts have."""
    parser.add_argument(
        "--swap-words",
        type=float,
        default=share,
        metavar="SHARE",
        help="share of wrong attributes in the decoder's input (%(default)s)",
    )


def save_half(model: PreTrainedModel, folder: Path) -> None:
    """Writes config, generation defaults and float16 weights; converts `model` in place."""
    model.half()
    for name in model.config.sub_configs:
        getattr(model.config, name).dtype = torch.float16
    model.save_pretrained(folder)


def run_line(module: str, arguments: Namespace, items: str, count: int, minutes: float) -> str:
    """The card's line about one run of a training script."""
    options = {name: value for name, value in vars(arguments).items() if value and name != "output"}
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in options.items()
    ]
    command = " ".join([module, *words])
    return f"{_RUN}{command}`: {count} {items}, {minutes:.0f} minutes on one CPU thread"


def write_card(
    folder: Path, run: str, scores: dict[str, float], *, is_resumed: bool, **words: str
) -> None:
    """Prints the scores and writes README.md.

    Lines of earlier runs are kept where this one resumed them. The `words` are the remaining names
    of the template above.
    """
    print(scores)
    _CARD.write(
        folder,
        words,
        runs=runs_of(folder, run, is_resumed=is_resumed),
        scores="\n".join(f"| {name} | {100 * share:.1f} % |" for name, share in scores.items()),
        count=TEST_SCENES,
        test_seed=TEST_SEED,
    )


def runs_of(folder: Path, run: str, *, is_resumed: bool) -> str:
    """The card's lines about the earlier runs that this one resumed, and about this one."""
    return "\n".join([*(earlier_runs(folder) if is_resumed else ()), run])


def earlier_runs(folder: Path) -> list[str]:
    """The lines about training runs in the folder's card, none without a card."""
    path = folder / "README.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(_RUN)]
