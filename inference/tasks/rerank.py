"""`rerank`: documents by their relevance to a query, scored together by a cross-encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError, TooLong
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.labels import activate
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
    item_error,
    map_valid,
    unwrap,
)
from inference.tasks.shared.needs import SPANS, scores
from inference.tasks.shared.rows import Row
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from inference.tasks.shared.text_rows import TextRows
from triptych.messages import Usage
from triptych.tasks import rerank as declared
from triptych.tasks.rerank import (
    MAX_DOCUMENTS,
    RankedDocument,
    Ranking,
    RerankRequest,
    RerankResponse,
)

MAX_PAIR_CHARACTERS = 5_000_000
"""Of all pairs of a request: each is tokenised, the query with every document again."""
_PAIR_SIZE = 32
"""Work for one pair of no length, in characters."""


class RerankSection(TaskConfig):
    """How the one logit of a pair becomes its score."""

    activation: Literal["sigmoid", "none"]


Pairs = tuple[tuple[Row, int] | ServingError, ...]
"""One query's documents: each pair's row and the characters cut off, or its error."""


@dataclass(frozen=True)
class RerankPlan(Plan):
    """Calls that score the pairs of each query with all documents."""

    model: LoadedModel
    section: RerankSection
    request: RerankRequest
    queries: tuple[Pairs | ServingError, ...]
    calls: tuple[InferCall, ...]
    prompt_tokens: int

    def finish(self, outcomes: Sequence[Outcome]) -> RerankResponse:
        def ranking(index: int, pairs: Pairs) -> Ranking:
            def rank(position: int, pair: tuple[Row, int] | ServingError) -> RankedDocument:
                row, cut = unwrap(pair)
                logits = row.read(outcomes, Role.LOGITS)
                score = activate(logits, self.section.activation)[0]
                return RankedDocument(
                    index=position,
                    score=float(score),
                    text=self._text(position),
                    truncated_characters=cut or None,
                )

            return Ranking(index=index, results=self._rank(attempt_each(pairs, rank)))

        data = answer_each(self.queries, ranking, Ranking)
        return RerankResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.prompt_tokens)
        )

    def finish_size(self, outcomes: Sequence[Outcome]) -> int:
        """Work for all pairs; equal ones share a row but are ranked one by one."""
        found = [query for query in self.queries if not isinstance(query, ServingError)]
        return sum(map(len, found)) * _PAIR_SIZE

    def _rank(self, documents: Sequence[RankedDocument | ServingError]) -> list[RankedDocument]:
        """The best documents, then all that failed."""
        good = [each for each in documents if isinstance(each, RankedDocument)]
        good.sort(key=lambda document: -(document.score or 0.0))
        failed = [
            RankedDocument(index=position, text=self._text(position), error=item_error(each))
            for position, each in enumerate(documents)
            if isinstance(each, ServingError)
        ]
        return [*good[: self.request.top_k], *failed]

    def _text(self, position: int) -> str | None:
        return self.request.documents[position] if self.request.return_documents else None


class Rerank(ServedTask[RerankRequest, RerankSection]):
    """Cross-encoders: sequence classifiers with one label."""

    declaration = declared.TASK
    section = RerankSection
    needs = (scores(takes=Role.TOKENS, shape="(B, C)") & SPANS,)

    def prepare(
        self, request: RerankRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> RerankPlan:
        model.task_limits.check_batch(len(request.query), "query")
        if (pairs := len(request.query) * len(request.documents)) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{len(request.query)} queries and {len(request.documents)} documents are {pairs} "
                f"pairs, at most {MAX_DOCUMENTS}: send several requests",
                field="documents",
            )
        if (characters := self.size(request) - pairs * _PAIR_SIZE) > MAX_PAIR_CHARACTERS:
            raise InvalidRequest(
                f"the pairs of query and documents have {characters} characters, at most "
                f"{MAX_PAIR_CHARACTERS}: send several requests",
                field="documents",
            )
        rows = TextRows(model)

        def add_query(index: int, query: str) -> tuple[tuple[int, int] | ServingError, ...]:
            def add(position: int, document: str) -> tuple[int, int]:
                pair = _pair(request, index, position, model)
                return rows.add(pair), pair.cut_characters

            return attempt_each(request.documents, add)

        numbers = attempt_each(request.query, add_query)
        calls: list[InferCall] = []
        part = model.part(takes=Role.TOKENS, returns=Role.LOGITS)
        found = rows.batch(part, (Role.LOGITS,), calls)

        def place(pair: tuple[int, int]) -> tuple[Row, int]:
            number, cut = pair
            return found[number], cut

        queries = map_valid(numbers, lambda query: map_valid(query, place))
        return RerankPlan(
            model,
            self.section_of(model),
            request,
            queries,
            tuple(calls),
            prompt_tokens=sum(map(len, rows.texts)),
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, (Role.TOKENS, Role.LOGITS))

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_documents": MAX_DOCUMENTS, "max_pair_characters": MAX_PAIR_CHARACTERS}

    def size(self, request: RerankRequest) -> int:
        """Characters of all pairs, and what a pair takes whatever its length."""
        documents, queries = len(request.documents), len(request.query)
        characters = sum(map(len, request.documents)) * queries
        characters += sum(map(len, request.query)) * documents
        return characters + documents * queries * _PAIR_SIZE


def _pair(request: RerankRequest, index: int, position: int, model: LoadedModel) -> EncodedText:
    """One query with one document.

    Raises:
        InvalidRequest: one of them is empty; names it.
        TooLong: the pair does not fit, and is not to be cut; names the document.
    """
    field, limit = f"documents.{position}", model.text_limit
    pair = model.encode_text(
        request.query[index],
        f"query.{index}",
        second=request.documents[position],
        second_field=field,
        is_whole=False,
        cut_end=request.cut_end,
    )
    if len(pair) > limit:
        raise TooLong(
            f"{field} has {len(pair)} tokens with its query, {model.name} takes at most {limit}: "
            "shorten it, or set truncate",
            field=field,
        )
    return pair


TASK = Rerank()
