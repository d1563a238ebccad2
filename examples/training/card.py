"""Model cards of the folders that read texts of the example world."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from examples.training.checkpoint_folder import CardTemplate, earlier_runs

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
