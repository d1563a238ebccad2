from dataclasses import replace

import pytest

from inference.errors import TooLong, Unavailable
from inference.tasks.rerank import TASK, RerankPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from serving.gateway.requests.service import INLINE_LIMIT
from tests.inference.tiny_models import cross_encoder, run, served
from triptych.tasks.rerank import Ranking, RerankRequest

LIMITS = TaskLimits(max_client_batch_size=4)
LONG = " ".join("abcdefghijkl")


def plan(model: LoadedModel, **fields: object) -> RerankPlan:
    return TASK.prepare(RerankRequest(**fields), (), replace(model, task_limits=LIMITS))


def rerank(model: LoadedModel, **fields: object) -> list[Ranking]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def ranked(item: Ranking) -> list[tuple[int, float | None]]:
    return [(entry.index, entry.score) for entry in item.results]


def test_each_query_ranks_all_documents_and_equal_pairs_share_a_row() -> None:
    made = plan(served(cross_encoder()), query=["q", "r", "q"], documents=["a", "b", "a"])
    assert sum(len(call.inputs["token_ids"]) for call in made.calls) == 4
    first, second, third = made.finish([run(call) for call in made.calls]).data
    assert ranked(first) == ranked(third) == ranked(second)
    assert [item.index for item in (first, second, third)] == [0, 1, 2]
    assert len(first.results) == 3


def test_bad_document_is_reported_after_the_others() -> None:
    (item,) = rerank(served(cross_encoder()), query="q", documents=[LONG, "a", " "], top_n=1)
    good, long, empty = item.results
    assert good.index == 1
    assert (long.index, long.score, long.error.type) == (0, None, "too_long")
    assert long.error.field == "documents.0"
    assert "documents.0 has 15 tokens with its query" in long.error.message
    assert (empty.error.type, empty.error.field) == ("invalid_request", "documents.2")


def test_truncate_cuts_the_longer_text() -> None:
    made = plan(served(cross_encoder()), query="q r", documents=[LONG], truncate=True)
    (call,) = made.calls
    assert call.inputs["lengths"].tolist() == [12]
    # Tokens: two of the query, the separator, eight of the document, the end.
    assert call.inputs["token_ids"].tolist() == [[3, 4, 2, *range(5, 13), 1]]
    assert call.inputs["segments"].tolist() == [[0] * 3 + [1] * 9]


def test_only_bad_documents_fail_the_query() -> None:
    with pytest.raises(TooLong):
        rerank(served(cross_encoder()), query="q", documents=[LONG])
    first, second = rerank(served(cross_encoder()), query=["q", LONG], documents=["a"])
    assert first.results
    assert second.error.type == "too_long"


def test_failed_call_fails_its_documents() -> None:
    made = plan(served(cross_encoder()), query="q", documents=["a", " ".join("abcdefgh")])
    (item,) = made.finish([Unavailable("down"), run(made.calls[1])]).data
    assert [(entry.index, entry.error is None) for entry in item.results] == [(1, True), (0, False)]


def test_limits_size_and_canary() -> None:
    model = served(cross_encoder())
    assert TASK.limits(model) == {"max_documents": 1000, "max_pair_characters": 5_000_000}
    assert TASK.size(RerankRequest(query=["ab", "c"], documents=["abc", "d"])) == 14 + 4 * 32
    (call,) = TASK.canary(model)
    assert call.model == "tiny-rerank"


def test_many_short_pairs_are_not_small_work() -> None:
    made = plan(served(cross_encoder()), query=["q"] * 4, documents=["a"] * 250)
    outcomes = [run(call) for call in made.calls]
    assert TASK.size(made.request) > INLINE_LIMIT
    assert made.finish_size(outcomes) > INLINE_LIMIT
    one = plan(served(cross_encoder()), query="q", documents=["a"])
    assert max(TASK.size(one.request), one.finish_size([])) < 100
