"""What every task refuses in its place: long and empty texts, results that are not numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

from inference.bundle.manifest import Manifest, Role
from inference.errors import InternalError, InvalidRequest, TooLong
from inference.tasks import (
    TASKS,
    classify,
    detect,
    embed,
    fill_mask,
    rerank,
    segment,
    tag,
    zero_shot,
)
from inference.tasks import answer as answer_task
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import InferCall, Outputs
from inference.tasks.shared.served_task import Plan, ServedTask
from tests.inference.tiny_models import (
    WordTokenizer,
    cross_encoder,
    embedded,
    image_classifier,
    image_file,
    mask_filler,
    run,
    served,
    text_classifier,
    two_towers,
    word_labeller,
)
from tests.tasks.models import MODELS, pictures
from triptych.messages import TruncationParameters
from triptych.tasks.answer import AnswerRequest
from triptych.tasks.classify import ClassifyRequest
from triptych.tasks.detect import DetectRequest
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.fill_mask import FillMaskRequest
from triptych.tasks.rerank import RerankRequest
from triptych.tasks.segment import SegmentRequest
from triptych.tasks.tag import TagRequest
from triptych.tasks.zero_shot import ZeroShotRequest

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
    assert not np.array_equal(left.embedding, right.embedding)


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


REASON = "the model returned values that are not numbers"
IMAGES = (image_file("red"), image_file("blue"))


@dataclass(frozen=True)
class TwoItems:
    """A request of two items that are the rows 0 and 1 of each of its calls."""

    task: ServedTask
    model: Callable[[], LoadedModel]
    request: BaseModel
    images: Sequence[bytes] = ()


def towers() -> LoadedModel:
    return replace(served(two_towers()), embeddings=EmbeddingCache())


PLACES = ["beside", "beside"]
TWO_ITEMS = {
    "classify texts": TwoItems(
        classify.TASK, MODELS["classify"], ClassifyRequest(texts=["a", "b"])
    ),
    "classify images": TwoItems(
        classify.TASK, lambda: pictures(attention=False), ClassifyRequest(images=PLACES), IMAGES
    ),
    "fill-mask": TwoItems(
        fill_mask.TASK, MODELS["fill-mask"], FillMaskRequest(texts=["? red", "? blue"])
    ),
    "fill-mask targets": TwoItems(
        fill_mask.TASK,
        MODELS["fill-mask"],
        FillMaskRequest(texts=["? red", "? blue"], targets=["white"]),
    ),
    "tag": TwoItems(tag.TASK, lambda: served(word_labeller()), TagRequest(texts=["a", "b"])),
    "answer": TwoItems(
        answer_task.TASK, MODELS["answer"], AnswerRequest(question=["a", "b"], passages=["c"])
    ),
    "embed texts": TwoItems(embed.TASK, towers, EmbedRequest(texts=["a", "b"])),
    "embed images": TwoItems(embed.TASK, towers, EmbedRequest(images=PLACES), IMAGES),
    "zero-shot": TwoItems(
        zero_shot.TASK, towers, ZeroShotRequest(images=PLACES, labels=["x", "y"]), IMAGES
    ),
    "detect": TwoItems(
        detect.TASK, MODELS["detect"], DetectRequest(images=PLACES, labels=["x", "y"]), IMAGES
    ),
    "segment": TwoItems(
        segment.TASK, MODELS["segment"], SegmentRequest(images=PLACES, labels=["x", "y"]), IMAGES
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", TWO_ITEMS.values(), ids=TWO_ITEMS)


def run_or_embed(call: InferCall) -> Outputs:
    if Role.EMBEDDING not in call.outputs.values():
        return run(call)
    rows = len(next(iter(call.inputs.values())))
    return {Role.EMBEDDING: np.eye(3, dtype=np.float32)[:rows]}


def poisoned(outputs: Outputs, rows: slice, value: float) -> Outputs:
    """The outputs with one value in place of a number in each of some rows."""
    made: dict[Role, np.ndarray] = {}
    for role, array in outputs.items():
        made[role] = array.copy()
        if array.dtype == np.float32:
            made[role][rows, ..., -1] = value
    return made


def is_poisoned(call: InferCall, case: TwoItems) -> bool:
    """Whether a call has the request's items; the labels of `zero-shot` are not items."""
    return not case.images or "pixels" in call.inputs


def answer(case: TwoItems, rows: slice, value: float) -> Sequence[BaseModel]:
    plan = case.task.prepare(case.request, case.images, case.model())
    following: Plan | None = plan
    while following is not None:
        plan = following
        outcomes = [
            poisoned(run_or_embed(call), rows, value)
            if is_poisoned(call, case)
            else run_or_embed(call)
            for call in plan.calls
        ]
        following = plan.following(outcomes)
    return plan.finish(outcomes).data


@EVERY_CASE
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_item_without_numbers_is_an_error_and_leaves_the_other_alone(
    case: TwoItems, value: float
) -> None:
    good, bad = answer(case, slice(1, 2), value)
    assert good.error is None
    assert (bad.index, bad.error.type) == (1, "internal")
    assert bad.error.message.startswith(REASON)
    assert {name for name, value in bad.model_dump().items() if value} == {"index", "error"}


@EVERY_CASE
def test_a_request_without_any_number_fails(case: TwoItems) -> None:
    with pytest.raises(InternalError, match=REASON):
        answer(case, slice(None), np.nan)


def test_a_document_without_a_score_is_reported_after_the_others() -> None:
    model = served(cross_encoder())
    request = RerankRequest(query="q", documents=["b", "c", "a"])
    plan = rerank.TASK.prepare(request, (), model)
    (call,) = plan.calls
    (item,) = plan.finish([poisoned(run_or_embed(call), slice(0, 1), np.nan)]).data
    assert [entry.index for entry in item.results] == [2, 1, 0]
    assert item.results[-1].score is None
    assert item.results[-1].error.message.startswith(REASON)


def test_attention_without_numbers_is_an_error_of_its_image() -> None:
    model = served(image_classifier())
    request = ClassifyRequest(images=PLACES, return_attention=True)
    plan = classify.TASK.prepare(request, IMAGES, model)
    outcomes = [
        poisoned(run_or_embed(call), slice(0, 1), np.nan)
        if Role.ATTENTION in call.outputs.values()
        else run_or_embed(call)
        for call in plan.calls
    ]
    bad, good = plan.finish(outcomes).data
    assert bad.error.message.startswith(REASON)
    assert good.attention is not None


def test_padding_may_hold_anything() -> None:
    plan = tag.TASK.prepare(TagRequest(texts="ba"), (), served(word_labeller()))
    (call,) = plan.calls
    outputs: Mapping[Role, np.ndarray] = {role: a.copy() for role, a in run_or_embed(call).items()}
    length = int(call.inputs["lengths"][0])
    outputs[Role.LOGITS][:, length:] = np.nan
    assert np.isnan(outputs[Role.LOGITS]).any()
    assert plan.finish([outputs]).data[0].error is None


def test_an_embedding_without_numbers_is_not_cached() -> None:
    model = towers()
    request = EmbedRequest(texts="a")
    plan = embed.TASK.prepare(request, (), model)
    with pytest.raises(InternalError, match=REASON):
        plan.finish([poisoned(run_or_embed(call), slice(None), np.nan) for call in plan.calls])
    assert embed.TASK.prepare(request, (), model).calls


def test_a_label_without_numbers_fails_the_request() -> None:
    request = ZeroShotRequest(images=PLACES, labels=["x", "y"])
    plan = zero_shot.TASK.prepare(request, IMAGES, towers())
    outcomes = [
        run_or_embed(call)
        if "pixels" in call.inputs
        else poisoned(run_or_embed(call), slice(1, 2), np.nan)
        for call in plan.calls
    ]
    with pytest.raises(InternalError, match=REASON):
        plan.finish(outcomes)


def test_a_label_of_zeros_has_no_direction_and_the_cosine_zero() -> None:
    plan = zero_shot.TASK.prepare(
        ZeroShotRequest(images=PLACES, labels=["x", "y"]), IMAGES, towers()
    )
    outcomes = [
        run_or_embed(call)
        if "pixels" in call.inputs
        else {Role.EMBEDDING: 0 * run_or_embed(call)[Role.EMBEDDING]}
        for call in plan.calls
    ]
    item, _ = plan.finish(outcomes).data
    assert [label.cosine for label in item.labels] == [0.0, 0.0]
