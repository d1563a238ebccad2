"""`rerank`: documents in the order of their relevance to a query, by a cross-encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triptych.messages import (
    Item,
    ItemError,
    Message,
    OneOrMany,
    Request,
    Response,
    TruncationParameters,
    cut_characters,
    earlier_name_of,
    optional,
)
from triptych.task import Command, Task, separator

MAX_DOCUMENTS = 1000

Documents = Annotated[int, Field(ge=1, le=MAX_DOCUMENTS)]


class RerankRequest(Request, TruncationParameters):
    """Request of `rerank`. Each query ranks all documents."""

    query: OneOrMany = Field(description="What is looked for.")
    documents: list[str] = Field(
        min_length=1, max_length=MAX_DOCUMENTS, description="Texts to rank."
    )
    top_k: Documents | None = optional("Return only this many, the best ones.")
    top_n: Documents | None = earlier_name_of("top_k")
    return_documents: bool = Field(default=False, description="Return the documents' texts.")


class RankedDocument(Message):
    """One document: its position among `documents` and its score, or why it has none."""

    index: int
    score: float | None = None
    text: str | None = None
    truncated_characters: int | None = cut_characters()
    error: ItemError | None = None


class Ranking(Item):
    """The documents for one query, best first; those that failed are last."""

    results: list[RankedDocument] | None = None


class RerankResponse(Response[Ranking]):
    """Response of `rerank`."""


def render(item: Ranking, name: str | None) -> Iterator[str]:
    """Score and document, one per line; the position of a document whose text was not returned."""
    yield from separator(item, name)
    for entry in item.results or ():
        text = f"document {entry.index + 1}" if entry.text is None else entry.text
        if entry.error is not None:
            yield f"  failed  {text}: {entry.error.message}"
        else:
            yield f"{entry.score:8.4f}  {text}"


TASK = Task(
    name="rerank",
    summary="Rank documents by their relevance to a query, best first.",
    request=RerankRequest,
    response=RerankResponse,
    inputs="query",
    command=Command(
        examples=(
            'triptych rerank "red things" --document "a red circle" --document "a blue square"',
            'triptych rerank "red things" --documents-file texts.txt --top-k 3 --return-documents',
        ),
        short={"documents": "d", "top_k": "k", "top_n": "n"},
        render=render,
    ),
    sample={"query": "{sentence}", "documents": ["a red circle", "a blue square", "a green ring"]},
)
