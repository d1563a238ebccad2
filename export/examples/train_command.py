"""`triptych train translate`: a user's parallel text → a checkpoint in Hugging Face's format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn

from export.examples.parallel_text import read_parallel_text
from export.examples.train_on_text import HeldOutScore, Recipe, settings
from export.examples.train_on_text import train as train_translator
from export.examples.training_folder import TrainingFolder
from serving.errors import SetupError

console = Console(highlight=False)


class TrainedTask(StrEnum):
    """What can be trained on a user's own data."""

    TRANSLATE = "translate"


def train(
    task: Annotated[TrainedTask, typer.Argument(help="What the model does.")],
    source: Annotated[Path, typer.Option(help="UTF-8 text, one sentence a line.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    output: Annotated[Path, typer.Option(help="Folder of the checkpoint; new, or to resume.")],
    source_language: Annotated[str, typer.Option(help="Code, for requests.")] = "src",
    target_language: Annotated[str, typer.Option(help="Code, for requests.")] = "tgt",
    steps: Annotated[int, typer.Option(min=1, help="Of about 1,500 target tokens.")] = 3000,
    seed: Annotated[int, typer.Option(help="Of weights, batches and held-out pairs.")] = 1,
    pieces: Annotated[
        int, typer.Option(min=50, help="Vocabulary of each language, at most.")
    ] = 4000,
    held_out: Annotated[
        int, typer.Option(min=1, help="Pairs kept out of training, for the score.")
    ] = 200,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Trains a small model on your own data; run again to resume.

    \b
    triptych train translate --source a.txt --target b.txt --output my-translator
    triptych export my-translator
    triptych serve

    Translate: a MarianMT network of three layers a side and width 128, with two sentencepiece
    vocabularies. Lines with an empty side are left out. The output has the files of a published
    opus-mt checkpoint, and a card with the score on held-out pairs. Its state is saved every 100
    steps; the same command continues there.
    """
    torch.set_num_threads(threads)
    recipe = Recipe((source_language, target_language), steps, seed, pieces, held_out)
    try:
        found = _translator(source, target, output, recipe)
    except (SetupError, OSError) as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        Console(stderr=True).print(f"interrupted; run again to resume {output}", soft_wrap=True)
        raise
    if found is None:
        console.print(f"{output} is finished: triptych export {output}", soft_wrap=True)
        return
    console.print(
        f"{found.pairs} held-out pairs: BLEU {found.bleu:.1f}, {found.exact:.1f} % exact (greedy)\n"
        f"saved in {output}; next: triptych export {output}",
        soft_wrap=True,
    )


def _translator(source: Path, target: Path, output: Path, recipe: Recipe) -> HeldOutScore | None:
    """The score; None where the folder has a finished checkpoint of the same training."""
    text = read_parallel_text(source, target)
    folder = TrainingFolder(output, settings(text, recipe))
    if folder.is_finished:
        return None
    skipped = f", {text.skipped} with an empty side left out" if text.skipped else ""
    console.print(f"{len(text.sources)} pairs of lines{skipped}")
    columns = (
        *Progress.get_default_columns()[:-1],
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        shown: TaskID = progress.add_task("training", total=recipe.steps, loss="")

        def advance(done: int, loss: float) -> None:
            progress.update(shown, completed=done, loss=f"loss {loss:.3f}")

        return train_translator(folder, text, recipe, advance)
