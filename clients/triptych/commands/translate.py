"""`triptych translate`: texts on the command line, or a file line by line."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triptych.commands.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    Alternatives,
    ApiKey,
    AsJson,
    ModelName,
    NumBeams,
    Stream,
    TimeoutS,
    Url,
    connect,
    refuse_with_stream,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from triptych.tasks.translate import TranslateResponse


def translate(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="- reads one from stdin.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Translate its lines; - is stdin.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="Continued where it ends."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", "-s", help="E.g. es.")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="E.g. en.")] = None,
    num_beams: NumBeams = None,
    alternatives: Alternatives = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines of a file sent at once.")] = 16,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="A line that fails becomes a blank one.")
    ] = False,
    stream: Stream = False,
    model: ModelName = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> int:
    """Texts, or a file line by line, in another language.

    \b
    triptych translate "Hola, mundo." --source es --target en
    triptych translate "Hola." --num-beams 4 --alternatives 4
    triptych translate "Hola. Adiós." --stream
    echo "Hola." | triptych translate -
    triptych translate -f spanish.txt -o english.txt -s es -t en

    Line i of the output belongs to line i of the input, blank lines included. Interrupted, the
    same command goes on where the output ends.
    """
    from triptych.commands.printing import print_stream

    if (file is None) == (not texts):
        raise typer.BadParameter("give either TEXT or --file")
    if output is not None and file is None:
        raise typer.BadParameter("--output needs --file")
    refuse_with_stream(stream, file=file, num_beams=num_beams, alternatives=alternatives)
    with connect(url, api_key, timeout) as client:
        if stream:
            pieces = client.translate_stream(
                _read(texts or []), source=source, target=target, model=model
            )
            return print_stream(pieces, as_json=as_json)
        ask = functools.partial(
            client.translate,
            source=source,
            target=target,
            model=model,
            num_beams=num_beams,
            alternatives=alternatives,
        )
        if file is not None:
            return _translate_lines(ask, file, output, batch_size, keep_going, as_json)
        return _translate_texts(ask, texts or [], as_json)


def _translate_texts(
    ask: Callable[[list[str]], TranslateResponse], texts: list[str], as_json: bool
) -> int:
    from triptych.commands.printing import print_json, print_texts

    answer = ask(_read(texts))
    if as_json:
        print_json(answer)
        return int(any(item.error for item in answer.data))
    return print_texts(answer.data)


def _read(texts: list[str]) -> list[str]:
    """Texts as given, and what stdin holds for `-`."""
    return [sys.stdin.read().rstrip("\n") if text == "-" else text for text in texts]


def _translate_lines(
    ask: Callable[[list[str]], TranslateResponse],
    file: str,
    output: Path | None,
    batch_size: int,
    keep_going: bool,
    as_json: bool,
) -> int:
    from triptych.commands.lines import LineTranslation, translated_file

    translation = LineTranslation(ask, batch_size, keep_going=keep_going, as_json=as_json)
    translated_file(translation, None if file == "-" else Path(file), output)
    for number, message in translation.failed:
        typer.echo(f"triptych: line {number}: {message}", err=True)
    return 1 if translation.failed else 0
