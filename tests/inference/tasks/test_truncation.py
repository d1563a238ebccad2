"""Long texts and texts without anything to read, alike in every task that reads texts whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest

from inference.bundle.manifest import Manifest, Role
from inference.errors import InvalidRequest, TooLong
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from tests.inference.tiny_models import (
    WordTokenizer,
    cross_encoder,
    embedded,
    mask_filler,
    run,
    served,
    text_classifier,
    two_towers,
    word_labeller,
)
from triptych.parameters import TruncationParameters

LIMITS = TaskLimits(max_input_tokens=24)
LIMIT = 12
"""Tokens of the tiny models, with the one that ends a text."""
SHORT = "? b"
LONG = "? b " + " ".join(f"w{number}" for number in range(28))
BLANK = ("", " ", "\n\t", "\u200b", "\ufeff \u2060", "\x00\x07", "\u00a0\u200f", "\u00ad")
End = Literal["left", "right"]


@dataclass(frozen=True)
class Case:
    """A field of a task that holds texts."""

    task: str
    manifest: Callable[[], Manifest]
    given: Callable[[list[str]], dict[str, Any]]
    results: Callable[[Any], list[Any]] = lambda data: list(data)
    before: int = 0
    """Tokens in front of the text, of a pair."""


CASES = {
    "embed": Case("embed", two_towers, lambda texts: {"texts": texts}),
    "embed, prompt": Case(
        "embed", two_towers, lambda texts: {"texts": texts, "prompt": "p "}, before=1
    ),
    "classify": Case("classify", text_classifier, lambda texts: {"texts": texts}),
    "classify, pairs": Case(
        "classify",
        text_classifier,
        lambda texts: {"pairs": [("q", text) for text in texts]},
        before=2,
    ),
    "tag": Case("tag", word_labeller, lambda texts: {"texts": texts}),
    "fill-mask": Case("fill-mask", mask_filler, lambda texts: {"texts": texts}),
    "rerank": Case(
        "rerank",
        cross_encoder,
        lambda texts: {"query": "q", "documents": texts},
        lambda data: sorted(data[0].results, key=lambda one: one.index),
        before=2,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def infer(call: InferCall) -> Outputs:
    if Role.EMBEDDING not in call.outputs.values():
        return run(call)
    tokens = call.inputs["token_ids"].astype(float)
    return {Role.EMBEDDING: embedded(np.stack([tokens.sum(axis=1), tokens[:, 0] + 1], axis=1))}


def model_of(case: Case) -> LoadedModel:
    tokenizer = WordTokenizer()
    for text in (SHORT, LONG):  # `?` is token 3, the mask
        tokenizer.encode(text)
    return replace(served(case.manifest(), tokenizer), task_limits=LIMITS)


def ask(case: Case, texts: list[str], model: LoadedModel | None = None, **fields: Any) -> list[Any]:
    task = TASKS[case.task]
    request = task.declaration.request(**case.given(texts), **fields)
    plan = task.prepare(request, (), model or model_of(case))
    return case.results(plan.finish([infer(call) for call in plan.calls]).data)


def values(result: Any) -> dict[str, Any]:
    return result.model_dump(exclude={"index", "truncated_characters"})


def test_every_task_with_the_fields_is_tried() -> None:
    requests = {name: task.declaration.request for name, task in TASKS.items()}
    having = {name for name, one in requests.items() if issubclass(one, TruncationParameters)}
    assert having == {case.task for case in CASES.values()}


def test_a_long_text_is_refused_in_its_place(case: Case) -> None:
    short, long = ask(case, [SHORT, LONG])
    assert short.error is None
    assert long.error.type == "too_long"


def test_a_long_text_is_read_up_to_the_models_limit(case: Case) -> None:
    short, long, other = ask(case, [SHORT, LONG, SHORT], truncate=True)
    kept = " ".join(LONG.split()[: LIMIT - 1 - case.before])
    (alone,) = ask(case, [kept])
    assert long.error is None
    assert values(long) == values(alone)
    assert long.truncated_characters == len(LONG) - len(kept) - 1
    assert LONG.endswith(" " + LONG[-long.truncated_characters :])
    assert short.truncated_characters is None
    assert values(short) == values(other) == values(ask(case, [SHORT])[0])


def test_the_left_end_is_cut_on_request(case: Case) -> None:
    text = " ".join(reversed(LONG.split()))
    (long,) = ask(case, [text], truncate=True, truncation_direction="left")
    room = LIMIT - 1 - (0 if "prompt" in case.given([]) else case.before)
    (alone,) = ask(replace(case, given=CASES[case.task].given), [" ".join(text.split()[-room:])])
    if case.task == "tag":  # offsets are those of the whole text
        assert [token.text for token in long.tokens] == [token.text for token in alone.tokens]
        assert all(text[one.start : one.end] == one.text for one in long.tokens)
    elif "pairs" not in case.given([]):
        assert values(long) == values(alone)
    assert long.truncated_characters > 0


@pytest.mark.parametrize("words", [100, 1_000, 30_000])
@pytest.mark.parametrize("end", ["right", "left"])
def test_a_text_far_above_the_gateways_limit_is_cut(case: Case, words: int, end: End) -> None:
    more = " ".join(["w1"] * words)
    text = f"{LONG} {more}" if end == "right" else f"{more} {LONG} {SHORT}"
    (long,) = ask(case, [text], truncate=True, truncation_direction=end)
    assert long.error is None
    assert long.truncated_characters > words
    with pytest.raises(TooLong):
        ask(case, [text])


def test_a_cut_text_is_not_what_another_request_finds_cached() -> None:
    case = CASES["embed"]
    model = model_of(case)
    ask(case, [LONG], model, truncate=True)
    with pytest.raises(TooLong):
        ask(case, [LONG], model)
    left, right = (
        ask(case, [LONG], model, truncate=True, truncation_direction=end)[0]
        for end in ("left", "right")
    )
    assert left.embedding != right.embedding


def test_a_prompt_that_is_cached_as_a_text_does_not_make_blank_texts_valid() -> None:
    case = CASES["embed"]
    model = model_of(case)
    ask(case, ["p ", "p \u200b"], model)
    for text in ("", "\u200b"):
        good, blank = ask(CASES["embed, prompt"], [SHORT, text], model)
        assert good.error is None
        assert blank.error.message == "texts.1 is empty"


@pytest.mark.parametrize("text", BLANK)
def test_a_text_with_nothing_to_read_is_refused_in_its_place(case: Case, text: str) -> None:
    for fields in ({}, {"truncate": True}):
        good, blank = ask(case, [SHORT, text], **fields)
        assert good.error is None
        assert blank.error.type == "invalid_request"
        assert "is empty" in blank.error.message
        assert blank.error.field.endswith(".1")


def test_a_text_that_the_tokenizer_drops_is_refused_in_its_place(case: Case) -> None:
    class Dropping(WordTokenizer):
        """Drops accents, as BERT's."""

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            text = text.replace("\u0301", " ")
            return super().encode(text, add_special_tokens=add_special_tokens)

        def encode_text(self, text: str, second: str | None = None, **given: Any) -> Any:
            without = None if second is None else second.replace("\u0301", " ")
            return super().encode_text(text.replace("\u0301", " "), without, **given)

    tokenizer = Dropping()
    tokenizer.encode(LONG)
    model = replace(served(case.manifest(), tokenizer), task_limits=LIMITS)
    for fields in ({}, {"truncate": True}):
        good, dropped = ask(case, [SHORT, "\u0301"], model, **fields)
        assert good.error is None
        assert dropped.error.message.endswith("is empty: it has no tokens")
        assert dropped.error.field.endswith(".1")


def test_a_query_with_nothing_to_read_is_named() -> None:
    task = TASKS["rerank"]
    for text in BLANK:
        request = task.declaration.request(query=["q", text], documents=["a"])
        plan = task.prepare(request, (), model_of(CASES["rerank"]))
        good, blank = plan.finish([infer(call) for call in plan.calls]).data
        assert good.results[0].score is not None
        assert blank.error.field == "query.1"


def test_a_mask_that_was_cut_off_is_missed() -> None:
    text = " ".join(LONG.split()[2:]) + " ?"
    with pytest.raises(InvalidRequest, match="has no mask in what was left of it"):
        ask(CASES["fill-mask"], [text], truncate=True)
    (found,) = ask(CASES["fill-mask"], [text], truncate=True, truncation_direction="left")
    assert found.masks
