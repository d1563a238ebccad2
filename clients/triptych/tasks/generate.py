"""`generate`: prompts continued, below an instruction and examples where given."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from triptych.messages import (
    MAX_STOPS,
    ClosedMessage,
    Generation,
    OneOrMany,
    OutputParameters,
    Response,
    Stop,
    StreamRequest,
    StructureParameters,
    TopLogProbs,
    as_list,
    optional,
)
from triptych.task import Command, Task

MAX_EXAMPLES = 100

_Stops = Annotated[list[Stop], Field(min_length=1, max_length=MAX_STOPS)]
OneOrManyStops = Annotated[_Stops, BeforeValidator(as_list, json_schema_input_type=Stop | _Stops)]


class Example(ClosedMessage):
    """One solved example of the task that the prompts continue."""

    input: str
    output: str


class GenerateRequest(StreamRequest, StructureParameters, OutputParameters):
    """Request of `generate`. Tokens are sampled when a sampling parameter is given.

    With `instruction` or `examples` the prompts stand in the few-shot layout, and a line break
    ends the output; without them a prompt is used as it is written. Where an encoder reads the
    prompts (summaries, text to text), an instruction alone stands in front of each of them.

    Prompts of some models hold images: `<image>` in a text is a place for one, and `images` fill
    the places in the order in which they are written: examples first, then prompts. As multipart,
    `images` are files, each of the `examples` is JSON, and other fields are text.
    """

    defaults = {"json_schema": ()}  # an empty schema is valid for any JSON

    prompts: OneOrMany = Field(description="Texts to continue.")
    images: OneOrMany | None = optional("Base64 or data URIs, one for each place in the texts.")
    instruction: str | None = optional("Task description, placed before the examples.")
    examples: list[Example] | None = optional("Solved examples, in order.", max_length=MAX_EXAMPLES)
    stop: OneOrManyStops | None = optional("Stop strings; the output ends before the first one.")
    logprobs: TopLogProbs | None = optional(
        "Return log-probabilities of the tokens, and of this many most likely ones."
    )
    echo: bool | None = optional(
        "Return the prompt before each output, and with `logprobs` its tokens' "
        "log-probabilities as `prompt_logprobs`."
    )


class GenerateResponse(Response[Generation]):
    """Response of `generate`."""


TASK = Task(
    name="generate",
    summary="Continue prompts, below an instruction and examples where given.",
    request=GenerateRequest,
    response=GenerateResponse,
    inputs="prompts",
    not_streamed=("num_beams", "length_penalty", "early_stopping", "n", "best_of", "echo"),
    command=Command(
        examples=(
            'triptych generate "The small red circle" --stream',
            'triptych generate cat -i "Translate English to French:" -e "dog => chien"',
            'triptych generate "Once" --temperature 0.8 --top-p 0.95 --seed 7 -n 3',
            'triptych generate "<image> a cat. <image>" --image cat.png --image dog.png',
            'triptych generate cat -e "dog => animal" --choice animal --choice food',
        ),
        short={"instruction": "i", "examples": "e"},
    ),
    sample={"prompts": ["{sentence}"], "max_new_tokens": 16},
)
