"""`triptych generate`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from triptych.commands.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
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

_ARROW = " => "


def generate(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="- reads one from stdin.")],
    instruction: Annotated[
        str | None, typer.Option("--instruction", "-i", help="What to do, before the examples.")
    ] = None,
    example: Annotated[
        list[str] | None, typer.Option("--example", "-e", help='"input => output"; repeat it.')
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Length at most.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling; 0 takes the best token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample among so many.")] = None,
    top_p: Annotated[
        float | None, typer.Option(max=1, help="Sample among the likely, together so much.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same samples again.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1, words that were said become less likely.")
    ] = None,
    num_beams: NumBeams = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Answers, best first.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="The answer ends before it; repeat it.")
    ] = None,
    stream: Stream = False,
    model: ModelName = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> int:
    """Prompts continued, below an instruction and examples if there are any.

    \b
    triptych generate "The small red circle" --stream
    triptych generate cat -i "Translate English to French:" -e "dog => chien" -e "sun => soleil"
    triptych generate "Once" --temperature 0.8 --top-p 0.95 --seed 7 -n 3

    With an instruction or examples, a line break ends the answer.
    """
    from triptych.commands.printing import print_json, print_stream, print_texts

    refuse_with_stream(stream, num_beams=num_beams, n=n)
    texts = [sys.stdin.read().rstrip("\n") if prompt == "-" else prompt for prompt in prompts]
    asked: dict[str, Any] = {
        "instruction": instruction,
        "examples": [_pair(text) for text in example or ()] or None,
        "model": model,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "repetition_penalty": repetition_penalty,
        "stop": stop or None,
    }
    with connect(url, api_key, timeout) as client:
        if stream:
            return print_stream(client.generate_stream(texts, **asked), as_json=as_json)
        answer = client.generate(texts, **asked, num_beams=num_beams, n=n)
    if as_json:
        print_json(answer)
        return int(any(item.error for item in answer.data))
    return print_texts(answer.data)


def _pair(example: str) -> tuple[str, str]:
    """Input and output of `input => output`."""
    given, arrow, answer = example.partition(_ARROW)
    if not (arrow and given.strip() and answer.strip()):
        raise typer.BadParameter(f'--example is "input{_ARROW}output", not {example!r}')
    return given, answer
