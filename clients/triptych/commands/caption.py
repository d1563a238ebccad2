"""`triptych caption`."""

from __future__ import annotations

from typing import Annotated

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


def caption(
    images: Annotated[list[str], typer.Argument(help="Image files; - reads one from stdin.")],
    prompt: Annotated[str | None, typer.Option(help="Words that captions begin with.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Length at most.")] = None,
    num_beams: NumBeams = None,
    alternatives: Alternatives = None,
    stream: Stream = False,
    model: ModelName = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> int:
    """Pictures in words.

    \b
    triptych caption boat.png
    triptych caption *.jpg --num-beams 4 --alternatives 4
    triptych caption boat.png --stream
    curl -s https://example.org/a.png | triptych caption -
    """
    from triptych.commands.pictures import pictures
    from triptych.commands.printing import print_json, print_stream, print_texts

    names = images if len(images) > 1 else None
    refuse_with_stream(stream, num_beams=num_beams, alternatives=alternatives)
    with connect(url, api_key, timeout) as client:
        if stream:
            pieces = client.caption_stream(
                pictures(images), prompt=prompt, model=model, max_new_tokens=max_new_tokens
            )
            return print_stream(pieces, names, as_json=as_json)
        answer = client.caption(
            pictures(images),
            prompt=prompt,
            model=model,
            num_beams=num_beams,
            alternatives=alternatives,
            max_new_tokens=max_new_tokens,
        )
    if as_json:
        print_json(answer)
        return int(any(item.error for item in answer.data))
    return print_texts(answer.data, names)
