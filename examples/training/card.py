"""Model cards of the folders that read texts of the example world."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from examples.es_en.scores import remembering
from examples.texts.grammar import Split
from examples.training.checkpoint_folder import CardTemplate, earlier_runs
from export.training.functions import Translate

_CARD = CardTemplate("""\
pipeline_tag: $pipeline
---
# $name

$summary

Architecture: $architecture,
$parameters M parameters, $megabytes MB in float16.

Trained on fresh texts of the example world, none of them in a test split:

$runs

$measured

$scores
""")


def write_text_card(
    folder: Path,
    *,
    pipeline: str,
    summary: str,
    architecture: str,
    runs: str,
    measured: str,
    scores: str,
) -> str:
    """Writes README.md and returns the scores.

    Args:
        pipeline: Hugging Face's name of its task.
        summary: What it does.
        architecture: The network and its sizes.
        runs: A line for each training run.
        measured: How the scores were measured.
    """
    _CARD.write(
        folder,
        pipeline=pipeline,
        summary=summary,
        architecture=architecture,
        megabytes=f"{(folder / 'model.safetensors').stat().st_size / 1e6:.2f}",
        runs=runs,
        measured=measured,
        scores=scores,
    )
    return scores


def percent(share: float) -> str:
    """A share as a cell of a table."""
    return f"{100 * share:.1f} %"


def score_table(scores: Mapping[str, float]) -> str:
    """Rows of names and shares."""
    return table_rows({name: [share] for name, share in scores.items()})


def table_rows(rows: Mapping[str, Iterable[float]]) -> str:
    """Rows of names, each with a share for every column."""
    return "\n".join(
        f"| {name} | {' | '.join(map(percent, shares))} |" for name, shares in rows.items()
    )


def write_again(write_card: Callable[[Path, str], str], description: str | None) -> None:
    """The command of a card's module: measures FOLDER again and keeps the lines of its training.

    Args:
        write_card: Takes the folder and those lines; returns the scores.
        description: Of the command.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    print(write_card(folder, "\n".join(earlier_runs(folder))))


Translator = Callable[[Path, int], Translate]
"""Folder, beams → its translations."""
Score = Callable[..., float]


def score_rows(
    translator: Translator, score: Score, exact_share: Score, folder: Path, count: int, seed: int
) -> Iterator[str]:
    """BLEU and exact matches by split and decoding, and BLEU against others' references."""
    splits: tuple[Split, ...] = ("compositional", "held_out")
    for split in splits:
        for beams in (1, 4):
            translate = remembering(translator(folder, beams))
            bleu = score(translate, split, count, seed)
            exact = exact_share(translate, split, count, seed)
            decoding = "greedy" if beams == 1 else f"beam {beams}"
            yield f"| {split.replace('_', ' ')} | {decoding} | {bleu:.2f} | {100 * exact:.1f} % |"
    shuffled = score(translator(folder, 1), "compositional", count, seed, is_shuffled=True)
    yield f"| compositional, shuffled | greedy | {shuffled:.2f} | |"


def translate_texts(translator: Translator, folder: Path, description: str) -> None:
    """Translates the sentences on the command line, with the committed checkpoint by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--beams", type=int, default=4)
    options = parser.parse_args()
    for translation in translator(options.folder, options.beams)(options.texts):
        print(translation)
