"""`score`: log-probabilities of given texts under a model."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from triptych.messages import (
    Item,
    OneOrMany,
    Request,
    Response,
    TokenLogprob,
    TopLogProbs,
    optional,
)
from triptych.task import Command, Task


class ScoreRequest(Request):
    """Request of `score`: what the model would have to write, and what it reads before that.

    A translator reads a source, a captioner an image, a language model a prompt. One text or image
    is for all targets; otherwise there is one for each.
    """

    targets: OneOrMany = Field(description="Texts to score, as outputs of the model.")
    texts: OneOrMany | None = optional("Sources or prompts: one for all targets, or one for each.")
    images: OneOrMany | None = optional("Images: one for all targets, or one for each.")
    with_end: bool | None = optional(
        "Score the end token too; by default of translators and captioners."
    )
    logprobs: TopLogProbs | None = optional(
        "Return log-probabilities of the tokens, and of this many most likely ones."
    )


class Score(Item):
    """The score of one target."""

    score: float | None = optional("Sum of the tokens' log-probabilities, natural logarithm.")
    tokens: int | None = optional("Tokens scored, the end token included if it is.")
    logprobs: list[TokenLogprob] | None = None


class ScoreResponse(Response[Score]):
    """Response of `score`."""


def render(item: Score, name: str | None) -> Iterator[str]:
    """Score and number of tokens; log-probabilities of the tokens below them."""
    yield f"{item.score:10.4f}  {item.tokens} tokens"
    for token in item.logprobs or ():
        yield f"  {token.logprob:10.4f}  {token.token!r}"


TASK = Task(
    name="score",
    summary="Score texts: their log-probabilities as translations, captions or continuations.",
    request=ScoreRequest,
    response=ScoreResponse,
    inputs="targets",
    command=Command(
        examples=(
            'triptych score "The cat sleeps." --text "El gato duerme." --model example-es-en',
            'triptych score "a red ring" "a blue square" --image picture.png',
            'triptych score " ring" " rang" --text "The small red" --logprobs 3',
        ),
        render=render,
    ),
    sample={"targets": ["{sentence}"], "texts": ["{sentence}"]},
)
