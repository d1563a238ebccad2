"""`triptych train`: a user's own data → a checkpoint in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn, TimeRemainingColumn

from export.training import bahdanau as train_on_words
from export.training import captions as train_on_pictures
from export.training import translation as train_on_text
from export.training.captioned_pictures import (
    CaptionedPictures,
    find_captions,
    read_captions,
    read_pictures,
)
from export.training.captions import PATCH
from export.training.resumable_training import HeldOutScore, Progress, TrainingFolder
from export.training.translation import read_parallel_text
from inference.errors import SetupError
from triptych.system_errors import explain

console = Console(highlight=False)
app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Translator(StrEnum):
    """Networks of `triptych train translate`."""

    MARIAN = "marian"
    BAHDANAU = "bahdanau"


_TRANSLATORS = {Translator.MARIAN: train_on_text.train, Translator.BAHDANAU: train_on_words.train}
Output = Annotated[Path, typer.Option(help="Folder of the checkpoint; new, or to resume.")]
Seed = Annotated[int, typer.Option(help="Of weights, batches and what is held out.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]


@app.callback()
def train() -> None:
    """Trains a small model on your own data; the same command again resumes it.

    \b
    triptych train translate --source a.txt --target b.txt --output my-translator
    triptych train caption --pictures my-pictures --output my-captioner
    """


@app.command()
def translate(
    source: Annotated[Path, typer.Option(help="UTF-8 text, one sentence a line.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    output: Output,
    architecture: Annotated[
        Translator, typer.Option(help="A Transformer, or the recurrent network of 2015.")
    ] = Translator.MARIAN,
    source_language: Annotated[str, typer.Option(help="Code, for requests.")] = "src",
    target_language: Annotated[str, typer.Option(help="Code, for requests.")] = "tgt",
    steps: Annotated[int, typer.Option(min=1, help="Of about 1,500 target tokens.")] = 3000,
    seed: Seed = 1,
    pieces: Annotated[
        int, typer.Option(min=50, help="Vocabulary of each language, at most.")
    ] = 4000,
    held_out: Annotated[
        int, typer.Option(min=1, help="Pairs kept out of training, for the score.")
    ] = 200,
    threads: Threads = 1,
) -> None:
    """A translator, from two files of text.

    \b
    triptych train translate --source a.txt --target b.txt --output my-translator
    triptych export my-translator
    triptych serve

    Marian: three layers a side of width 128, two sentencepiece vocabularies, the files of a
    published opus-mt checkpoint. Bahdanau: GRUs with the attention of Bahdanau, Cho and Bengio,
    over words, in a format of our own; it answers return_alignment word by word. Lines with an
    empty side are left out. A card has the score on held-out pairs. The state is saved every 100
    steps; the same command continues there.
    """
    torch.set_num_threads(threads)
    recipe = train_on_text.Recipe(
        (source_language, target_language), steps, seed, pieces, held_out, architecture.value
    )
    with _report(output):
        text = read_parallel_text(source, target)
        folder = TrainingFolder(output, train_on_text.settings(text, recipe))
        if folder.is_finished:
            _print_finished(output)
            return
        skipped = f", {text.skipped} with an empty side left out" if text.skipped else ""
        console.print(f"{len(text.sources)} pairs of lines{skipped}")
        with _progress(steps) as advance:
            found = _TRANSLATORS[architecture](folder, text, recipe, advance)
        _print_score(output, found, "pairs")


@app.command()
def caption(
    pictures: Annotated[Path, typer.Option(help="Folder of image files.")],
    output: Output,
    captions: Annotated[
        Path | None,
        typer.Option(help="What they show; default: captions.txt, .tsv, .csv or .jsonl in it."),
    ] = None,
    side: Annotated[
        int, typer.Option(min=PATCH, help=f"Pixels; a multiple of {PATCH}. Resized to a square.")
    ] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Of 32 captions.")] = 3000,
    seed: Seed = 1,
    pieces: Annotated[int, typer.Option(min=257, help="Vocabulary, at most.")] = 2000,
    held_out: Annotated[
        int, typer.Option(min=1, help="Pictures kept out of training, for the score.")
    ] = 100,
    threads: Threads = 1,
) -> None:
    """A captioner, from a folder of pictures and a file of captions.

    \b
    triptych train caption --pictures my-pictures --output my-captioner
    triptych export my-captioner
    triptych serve

    A line of captions.txt is a file name in the folder, a tab and a caption; .csv and .jsonl have
    the columns or keys file_name and text, or image and caption. Several lines about one picture
    are several captions of it. A ViT of four layers and GPT-2 of two, with a byte-level BPE: a
    VisionEncoderDecoderModel, and a card with the score on held-out pictures. Its state is saved
    every 100 steps; the same command continues there.
    """
    if side % PATCH:
        raise typer.BadParameter(f"{side} is not a multiple of {PATCH}", param_hint="--side")
    torch.set_num_threads(threads)
    recipe = train_on_pictures.Recipe(side, steps, seed, pieces, held_out)
    with _report(output):
        read = _open_pictures(pictures, captions or find_captions(pictures), recipe)
        folder = TrainingFolder(output, train_on_pictures.settings(read, recipe))
        if folder.is_finished:
            _print_finished(output)
            return
        console.print(f"{len(read.names)} pictures, {sum(map(len, read.captions))} captions")
        with _progress(steps) as advance:
            found = train_on_pictures.train(folder, read, recipe, advance)
        _print_score(output, found, "pictures")


def _open_pictures(
    pictures: Path, captions: Path, recipe: train_on_pictures.Recipe
) -> CaptionedPictures:
    """The pictures, decoded under a progress bar."""
    lines = read_captions(captions)
    with Bar(console=console) as progress:
        shown = progress.add_task("reading pictures")
        return read_pictures(
            pictures,
            lines,
            recipe.spec,
            lambda done, total: progress.update(shown, completed=done, total=total),
        )


@contextmanager
def _progress(steps: int) -> Iterator[Progress]:
    """A bar of the steps with the loss; yields what advances it."""
    columns = (
        *Bar.get_default_columns()[:-1],
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Bar(*columns, console=console) as progress:
        shown = progress.add_task("training", total=steps, loss="")
        yield lambda done, loss: progress.update(shown, completed=done, loss=f"loss {loss:.3f}")


@contextmanager
def _report(output: Path) -> Iterator[None]:
    """Failures as a line, and how an interrupted training is resumed."""
    try:
        yield
    except (SetupError, OSError) as error:
        text = f"error: {explain(error, output)}"
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        Console(stderr=True).print(f"interrupted; run again to resume {output}", soft_wrap=True)
        raise


def _print_finished(output: Path) -> None:
    console.print(f"{output} is finished: triptych export {output}", soft_wrap=True)


def _print_score(output: Path, found: HeldOutScore, items: str) -> None:
    console.print(
        f"{found.items} held-out {items}: BLEU {found.bleu:.1f}, "
        f"{found.exact:.1f} % exact (greedy)\n"
        f"saved in {output}; next: triptych export {output}",
        soft_wrap=True,
    )
