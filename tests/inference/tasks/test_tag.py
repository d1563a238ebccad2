"""`tag` and its entities, beside `transformers`' token-classification pipeline."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from inference.tasks.shared.labels import Entity, LabelledToken, entities, without_overlaps
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.tag import TASK, TagPlan
from tests.inference.tiny_models import run, served, word_labeller
from tests.tasks.models import MODELS
from triptych.tasks.tag import TagRequest, Tags

LIMITS = TaskLimits(max_client_batch_size=20, max_input_tokens=60)


@pytest.fixture
def model() -> LoadedModel:
    return MODELS["tag"]()


def plan(model: LoadedModel, **fields: object) -> TagPlan:
    return TASK.prepare(TagRequest(**fields), (), replace(model, task_limits=LIMITS))


def label(model: LoadedModel, **fields: object) -> list[Tags]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def found(item: Tags) -> list[tuple[str, int, int, str]]:
    return [(token.text, token.start, token.end, token.label) for token in item.tokens]


@pytest.mark.parametrize("stride", [0, 1, 4, 10])
@pytest.mark.parametrize("aggregation", ["none", "simple", "first"])
def test_windows_give_the_same_tokens_as_one_text(
    model: LoadedModel, stride: int, aggregation: str
) -> None:
    """Labels depend on the token alone, so that windows change nothing but an entity they cut."""
    text = " ".join(["ba", "ia", "o", "bb", "o"] * 6)
    (item,) = label(model, texts=text, aggregation=aggregation, stride=stride)
    whole = served(
        word_labeller().model_copy(update={"limits": model.manifest.limits.model_copy(
            update={"max_input_tokens": None})}),
        model.tokenizer,
    )  # fmt: skip
    (expected,) = label(whole, texts=text, aggregation=aggregation)
    assert len(plan(model, texts=text, stride=stride).items[0].windows) > 1
    if aggregation == "none" or stride > 1:
        assert found(item) == found(expected)
    covered = {place for token in item.tokens for place in range(token.start, token.end)}
    pieces = {place for token in expected.tokens for place in range(token.start, token.end)}
    assert {place for place in covered if text[place] != " "} == {
        place for place in pieces if text[place] != " "
    }


def test_size_and_canary(model: LoadedModel) -> None:
    assert TASK.size(TagRequest(texts=["ab", "c"])) == 3
    (call,) = TASK.canary(model)
    assert set(call.inputs) == {"token_ids", "lengths"}


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "B-A-B")
AGGREGATIONS = ("none", "simple", "first", "average", "max")
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def pipeline() -> TokenClassificationPipeline:
    made = object.__new__(TokenClassificationPipeline)
    made.tokenizer = SimpleNamespace(convert_tokens_to_string=lambda tokens: " ".join(tokens))
    made.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(LABELS))))
    return made


def drawn(seed: int, count: int) -> list[LabelledToken]:
    """Tokens of random widths, most of them certain of their label."""
    random = np.random.default_rng(seed)
    widths = random.integers(0, 4, count)
    ends = np.cumsum(widths + random.integers(0, 2, count))
    tokens = []
    for end, width in zip(ends, widths, strict=True):
        scores = random.dirichlet(np.full(len(LABELS), 0.3)).astype(np.float32)
        continues = bool(tokens) and bool(random.random() < 0.4)
        tokens.append(LabelledToken(int(end - width), int(end), scores, continues))
    return tokens


def theirs(
    pipeline: TokenClassificationPipeline, tokens: list[LabelledToken], aggregation: str
) -> list[dict[str, Any]]:
    entries = [
        {"word": "w", "scores": t.scores, "start": t.start, "end": t.end, "index": i,
         "is_subword": t.continues}
        for i, t in enumerate(tokens)
    ]  # fmt: skip
    return pipeline.aggregate(entries, AggregationStrategy[aggregation.upper()])


def assert_same(found: list[Entity], expected: list[dict[str, Any]]) -> None:
    assert [(one.start, one.end, one.label) for one in found] == [
        (one["start"], one["end"], one.get("entity_group") or one["entity"]) for one in expected
    ]
    np.testing.assert_allclose(
        [one.score for one in found], [one["score"] for one in expected], atol=1e-6
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(seed=seeds, count=st.integers(0, 25))
def test_entities_equal_those_of_the_pipeline(
    pipeline: TokenClassificationPipeline, aggregation: str, seed: int, count: int
) -> None:
    tokens = drawn(seed, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs(pipeline, tokens, aggregation)
    assert_same(entities(tokens, LABELS, aggregation), expected)


@given(seed=seeds, count=st.integers(1, 12))
def test_overlaps_are_resolved_as_by_the_pipeline(
    pipeline: TokenClassificationPipeline, seed: int, count: int
) -> None:
    random = np.random.default_rng(seed)
    starts = random.integers(0, 30, count)
    found = [
        Entity(int(start), int(start + random.integers(1, 8)), "x", float(random.integers(0, 3)))
        for start in starts
    ]
    expected = pipeline.aggregate_overlapping_entities(
        [{"start": e.start, "end": e.end, "entity_group": e.label, "score": e.score} for e in found]
    )
    assert_same(without_overlaps(found), expected)


def test_token_without_width_is_kept_once() -> None:
    windows = [Entity(3, 3, "x", 0.2), Entity(3, 3, "x", 0.4), Entity(3, 5, "y", 0.1)]
    assert without_overlaps(windows) == [windows[1], windows[2]]
    assert without_overlaps([]) == []
