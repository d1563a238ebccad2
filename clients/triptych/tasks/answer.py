"""`answer`: parts of passages that answer a question, by an extractive reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triptych.messages import (
    MAX_RANK,
    MAX_STRIDE,
    Item,
    Message,
    OneOrMany,
    Request,
    Response,
    optional,
)
from triptych.task import Command, Task, separator

MAX_PASSAGES = 100
MAX_ANSWERS = 20
MAX_ANSWER_TOKENS = 128
MAX_THRESHOLD = 100

_Tokens = Annotated[int, Field(ge=1, le=MAX_RANK)]
_Shared = Annotated[int, Field(ge=0, le=MAX_STRIDE)]
_Threshold = Annotated[float, Field(ge=-MAX_THRESHOLD, le=MAX_THRESHOLD)]


class AnswerRequest(Request):
    """Request of `answer`. Each question is answered from all passages.

    Windows and scores are those of the question-answering pipeline of `transformers` 4. The
    question with a part of a passage is a window. The score of an answer is the probability that
    it starts at its first token times that of its end at its last, among the tokens of the passage
    in that window and the token of the null answer.
    """

    question: OneOrMany = Field(description="What is to be answered.")
    passages: OneOrMany = Field(
        max_length=MAX_PASSAGES,
        description="Texts that answers are parts of, of any length, or documents as data URIs.",
    )
    n: int = Field(
        default=1,
        ge=1,
        le=MAX_ANSWERS,
        description="Number of answers per question, best first, of which no two overlap.",
    )
    max_answer_tokens: int = Field(
        default=15, ge=1, le=MAX_ANSWER_TOKENS, description="Tokens of an answer, at most."
    )
    max_window_tokens: _Tokens | None = optional(
        "Tokens of a window, with the question: by default 384, or what the model takes if less."
    )
    stride: _Shared | None = optional(
        "Tokens that two windows of a passage share: by default 128, or half a window if less."
    )
    null_threshold: _Threshold | None = optional(
        "Also return the null answer, the empty text: it is before an answer where the logarithm "
        "of its score is more than this above that of the answer's. Never by default."
    )
    align_to_words: bool = Field(default=True, description="Widen answers to whole words.")


class FoundAnswer(Message):
    """An answer: characters `start` to `end` (excluded) of a passage; a null answer is empty."""

    text: str
    score: float
    start: int
    end: int
    passage: int | None = optional("Position of its passage; absent: it is the null answer.")


class Answers(Item):
    """The answers to one question, best first."""

    answers: list[FoundAnswer] | None = None
    null_score: float | None = optional(
        "Of the null answer: the least of all windows; absent where the model has none."
    )


class AnswerResponse(Response[Answers]):
    """Response of `answer`."""


def render(item: Answers, name: str | None) -> Iterator[str]:
    """Score, place and text, one answer per line."""
    yield from separator(item, name)
    for one in item.answers or ():
        place = "no answer" if one.passage is None else f"{one.passage + 1}:{one.start}-{one.end}"
        yield f"{one.score:8.4f}  {place:>11}  {one.text}".rstrip()


TASK = Task(
    name="answer",
    summary="Find the answer to a question in passages.",
    request=AnswerRequest,
    response=AnswerResponse,
    inputs="question",
    documents=("passages",),
    command=Command(
        examples=(
            'triptych answer "Where was Ada born?" --passage "Ada Lovelace was born in London."',
            'triptych answer "Who wrote it?" --passages-file pages.txt -n 3 --null-threshold 0',
            'triptych answer "Who wrote it?" --passages-file report.docx',
        ),
        short={"passages": "p"},
        render=render,
    ),
    sample={
        "question": "Where is the red circle?",
        "passages": ["{sentence}", "The red circle is left of the blue square."],
    },
)
