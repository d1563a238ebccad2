"""Models that return NaN or infinity: an error of the item, in every stateless task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from pydantic import BaseModel

from inference.bundle.manifest import Role
from inference.errors import InternalError
from inference.tasks import answer as answer_task
from inference.tasks import classify, detect, embed, fill_mask, rerank, segment, tag, zero_shot
from inference.tasks.shared.embedding_cache import EmbeddingCache
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import InferCall, Outputs
from inference.tasks.shared.served_task import Plan, ServedTask
from tests.inference import tiny_models
from tests.inference.tiny_models import (
    WordTokenizer,
    detector,
    image_file,
    segmenter,
    served,
    two_towers,
)
from triptych.tasks.answer import AnswerRequest
from triptych.tasks.classify import ClassifyRequest
from triptych.tasks.detect import DetectRequest
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.fill_mask import FillMaskRequest
from triptych.tasks.rerank import RerankRequest
from triptych.tasks.segment import SegmentRequest
from triptych.tasks.tag import TagRequest
from triptych.tasks.zero_shot import ZeroShotRequest

REASON = "the model returned values that are not numbers"
IMAGES = (image_file("red"), image_file("blue"))


@dataclass(frozen=True)
class Case:
    """A request of two items that are the rows 0 and 1 of each of its calls."""

    task: ServedTask
    model: Callable[[], LoadedModel]
    request: BaseModel
    images: Sequence[bytes] = ()


def mask_filler() -> LoadedModel:
    tokenizer = WordTokenizer()
    tokenizer.encode("? red green blue white black")
    return served(tiny_models.mask_filler(), tokenizer)


def towers() -> LoadedModel:
    return replace(served(two_towers()), embeddings=EmbeddingCache())


PLACES = ["beside", "beside"]
CASES = {
    "classify texts": Case(
        classify.TASK,
        lambda: served(tiny_models.text_classifier()),
        ClassifyRequest(texts=["a", "b"]),
    ),
    "classify images": Case(
        classify.TASK,
        lambda: served(tiny_models.image_classifier(attention=False)),
        ClassifyRequest(images=PLACES),
        IMAGES,
    ),
    "fill-mask": Case(fill_mask.TASK, mask_filler, FillMaskRequest(texts=["? red", "? blue"])),
    "fill-mask targets": Case(
        fill_mask.TASK, mask_filler, FillMaskRequest(texts=["? red", "? blue"], targets=["white"])
    ),
    "tag": Case(
        tag.TASK, lambda: served(tiny_models.word_labeller()), TagRequest(texts=["a", "b"])
    ),
    "answer": Case(
        answer_task.TASK,
        lambda: served(tiny_models.passage_reader()),
        AnswerRequest(question=["a", "b"], passages=["c"]),
    ),
    "embed texts": Case(embed.TASK, towers, EmbedRequest(texts=["a", "b"])),
    "embed images": Case(embed.TASK, towers, EmbedRequest(images=PLACES), IMAGES),
    "zero-shot": Case(
        zero_shot.TASK, towers, ZeroShotRequest(images=PLACES, labels=["x", "y"]), IMAGES
    ),
    "detect": Case(
        detect.TASK,
        lambda: served(detector()),
        DetectRequest(images=PLACES, labels=["x", "y"]),
        IMAGES,
    ),
    "segment": Case(
        segment.TASK,
        lambda: served(segmenter()),
        SegmentRequest(images=PLACES, labels=["x", "y"]),
        IMAGES,
    ),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def run(call: InferCall) -> Outputs:
    if Role.EMBEDDING not in call.outputs.values():
        return tiny_models.run(call)
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


def is_poisoned(call: InferCall, case: Case) -> bool:
    """Whether a call has the request's items; the labels of `zero-shot` are not items."""
    return not case.images or "pixels" in call.inputs


def answer(case: Case, rows: slice, value: float) -> Sequence[BaseModel]:
    plan = case.task.prepare(case.request, case.images, case.model())
    following: Plan | None = plan
    while following is not None:
        plan = following
        outcomes = [
            poisoned(run(call), rows, value) if is_poisoned(call, case) else run(call)
            for call in plan.calls
        ]
        following = plan.following(outcomes)
    return plan.finish(outcomes).data


@EVERY_CASE
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_item_without_numbers_is_an_error_and_leaves_the_other_alone(
    case: Case, value: float
) -> None:
    good, bad = answer(case, slice(1, 2), value)
    assert good.error is None
    assert (bad.index, bad.error.type) == (1, "internal")
    assert bad.error.message.startswith(REASON)
    assert {name for name, value in bad.model_dump().items() if value} == {"index", "error"}


@EVERY_CASE
def test_a_request_without_any_number_fails(case: Case) -> None:
    with pytest.raises(InternalError, match=REASON):
        answer(case, slice(None), np.nan)


def test_a_document_without_a_score_is_reported_after_the_others() -> None:
    model = served(tiny_models.cross_encoder())
    request = RerankRequest(query="q", documents=["b", "c", "a"])
    plan = rerank.TASK.prepare(request, (), model)
    (call,) = plan.calls
    (item,) = plan.finish([poisoned(run(call), slice(0, 1), np.nan)]).data
    assert [entry.index for entry in item.results] == [2, 1, 0]
    assert item.results[-1].score is None
    assert item.results[-1].error.message.startswith(REASON)


def test_attention_without_numbers_is_an_error_of_its_image() -> None:
    model = served(tiny_models.image_classifier())
    request = ClassifyRequest(images=PLACES, return_attention=True)
    plan = classify.TASK.prepare(request, IMAGES, model)
    outcomes = [
        poisoned(run(call), slice(0, 1), np.nan)
        if Role.ATTENTION in call.outputs.values()
        else run(call)
        for call in plan.calls
    ]
    bad, good = plan.finish(outcomes).data
    assert bad.error.message.startswith(REASON)
    assert good.attention is not None


def test_padding_may_hold_anything() -> None:
    plan = tag.TASK.prepare(TagRequest(texts="ba"), (), served(tiny_models.word_labeller()))
    (call,) = plan.calls
    outputs: Mapping[Role, np.ndarray] = {role: a.copy() for role, a in run(call).items()}
    length = int(call.inputs["lengths"][0])
    outputs[Role.LOGITS][:, length:] = np.nan
    assert np.isnan(outputs[Role.LOGITS]).any()
    assert plan.finish([outputs]).data[0].error is None


def test_an_embedding_without_numbers_is_not_cached() -> None:
    model = towers()
    request = EmbedRequest(texts="a")
    plan = embed.TASK.prepare(request, (), model)
    with pytest.raises(InternalError, match=REASON):
        plan.finish([poisoned(run(call), slice(None), np.nan) for call in plan.calls])
    assert embed.TASK.prepare(request, (), model).calls


def test_a_label_without_numbers_fails_the_request() -> None:
    request = ZeroShotRequest(images=PLACES, labels=["x", "y"])
    plan = zero_shot.TASK.prepare(request, IMAGES, towers())
    outcomes = [
        run(call) if "pixels" in call.inputs else poisoned(run(call), slice(1, 2), np.nan)
        for call in plan.calls
    ]
    with pytest.raises(InternalError, match=REASON):
        plan.finish(outcomes)


def test_a_label_of_zeros_has_no_direction_and_the_cosine_zero() -> None:
    plan = zero_shot.TASK.prepare(
        ZeroShotRequest(images=PLACES, labels=["x", "y"]), IMAGES, towers()
    )
    outcomes = [
        run(call) if "pixels" in call.inputs else {Role.EMBEDDING: 0 * run(call)[Role.EMBEDDING]}
        for call in plan.calls
    ]
    item, _ = plan.finish(outcomes).data
    assert [label.cosine for label in item.labels] == [0.0, 0.0]
