"""`triptych zero-shot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.commands.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    ApiKey,
    AsJson,
    ModelName,
    TimeoutS,
    Url,
    connect,
)


def zero_shot(
    images: Annotated[list[str], typer.Argument(help="Image files; - reads one from stdin.")],
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="Repeat it.")] = None,
    labels_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="One label a line.")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="A sentence with {}; several are averaged.")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Print the best so many only.")] = None,
    model: ModelName = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> int:
    """The labels that fit each picture, best first: probability, label.

    \b
    triptych zero-shot boat.png --label "a boat" --label "a horse"
    triptych zero-shot *.png --labels-file labels.txt --top 3
    triptych zero-shot boat.png -l boat -l horse --template "a drawing of a {}"
    """
    from triptych.commands.pictures import pictures
    from triptych.commands.printing import print_json, report_errors

    labels = [*(label or ()), *(_lines(labels_file) if labels_file else ())]
    if not labels:
        raise typer.BadParameter("no labels: give --label or --labels-file")
    with connect(url, api_key, timeout) as client:
        answer = client.zero_shot(pictures(images), labels, templates=template or None, model=model)
    if as_json:
        print_json(answer)
        return int(any(item.error for item in answer.data))
    for item in answer.data:
        if len(images) > 1 and item.error is None:
            typer.echo(images[item.index])
        for entry in (item.labels or ())[:top]:
            typer.echo(f"{entry.score:7.2%}  {entry.label}")
    return report_errors([(item.index, item.error) for item in answer.data], images)


def _lines(path: Path) -> list[str]:
    """Lines of a file that are not blank."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text") from None
    return [line.strip() for line in text.split("\n") if line.strip()]
