from dataclasses import replace

import numpy as np
import pytest

from inference.errors import BundleError, InvalidRequest, Unavailable
from inference.processing.tokenizer import EncodedText
from inference.tasks.classify import TASK, ClassifyPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.tiny_models import (
    WordTokenizer,
    image_classifier,
    run,
    served,
    text_classifier,
)
from triptych.tasks.classify import Classes, ClassifyRequest

LIMITS = TaskLimits(max_client_batch_size=20, max_input_tokens=40)
LONG = " ".join("abcdefghijklmnopqrstuvwxyz")
"""26 tokens and the end; a model takes 12."""


def plan(model: LoadedModel, **fields: object) -> ClassifyPlan:
    images = fields.pop("images", ())
    request = ClassifyRequest(images=["placeholder"] * len(images) or None, **fields)
    return TASK.prepare(request, images, replace(model, task_limits=LIMITS))


def classify(model: LoadedModel, **fields: object) -> list[Classes]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def scores(item: Classes) -> dict[str, float]:
    return {entry.label: entry.score for entry in item.labels}


def softmax(*logits: float) -> dict[str, float]:
    weights = np.exp(np.array(logits) - max(logits))
    return dict(zip("xyz", weights / weights.sum(), strict=True))


def test_five_labels_are_returned_by_default() -> None:
    model = served(text_classifier(labels=("x", "y", "z")))
    assert TASK.limits(model) == {"max_top_k": 3}
    assert ClassifyRequest(texts="a").top_k == 5


@pytest.mark.parametrize(
    ("pairs", "texts", "accepted"),
    [("none", True, True), ("none", False, False), ("optional", True, True),
     ("optional", False, True), ("required", True, False), ("required", False, True)],
)  # fmt: skip
def test_section_decides_about_pairs(pairs: str, texts: bool, accepted: bool) -> None:
    model = served(text_classifier(pairs=pairs))
    fields = {"texts": "a"} if texts else {"pairs": [["a", "b"]]}
    assert TASK.accepts(ClassifyRequest(**fields), model) is accepted
    assert (next(iter(fields)) in TASK.inputs(model)) is accepted


def test_inputs_are_those_of_the_parts() -> None:
    assert TASK.inputs(served(text_classifier(pairs="optional"))) == ["texts", "pairs"]
    assert TASK.inputs(served(text_classifier(pairs="required"))) == ["pairs"]
    assert TASK.inputs(served(image_classifier())) == ["images"]


def test_long_text_has_the_mean_of_its_windows_scores() -> None:
    model = served(text_classifier())
    made = plan(model, texts=[LONG, "a"], stride=3)
    inputs = [(c.inputs["token_ids"], c.inputs["lengths"]) for c in made.calls]
    tokens = [row[:n] for ids, lengths in inputs for row, n in zip(ids, lengths, strict=True)]
    firsts = sorted((row[0], len(row)) for row in tokens)
    # Windows of 11 tokens begin at tokens 0, 8 and 16 of the text, which are 3, 11 and 19.
    assert firsts == [(3, 2), (3, 12), (11, 12), (19, 11)]
    long, short = made.finish([run(call) for call in made.calls]).data
    parts = [softmax(3, 12, 0), softmax(11, 12, 0), softmax(19, 11, 0)]
    mean = {label: np.mean([part[label] for part in parts]) for label in "xyz"}
    assert scores(long) == pytest.approx(mean)
    assert scores(short) == pytest.approx(softmax(3, 2, 0))


def test_failed_call_fails_its_own_items() -> None:
    made = plan(served(text_classifier()), texts=["a", " ".join("abcdefghij")])
    data = made.finish([Unavailable("down"), run(made.calls[1])]).data
    assert [item.error is not None for item in data] == [True, False]


def test_canary_calls_every_part() -> None:
    (text,) = TASK.canary(served(text_classifier()))
    assert set(text.inputs) == {"token_ids", "lengths", "segments"}
    assert [call.model for call in TASK.canary(served(image_classifier()))] == [
        "tiny-classify",
        "tiny-classify-attention",
    ]


def test_size_counts_the_characters_of_texts() -> None:
    assert TASK.size(ClassifyRequest(texts=["ab", "c"])) == 3
    assert TASK.size(ClassifyRequest(pairs=[["ab", "cde"]])) == 5
    assert TASK.size(ClassifyRequest(images=["ab"])) is None


def test_labels_that_do_not_fit_the_graph_are_refused() -> None:
    described = text_classifier()
    section = {**described.tasks["classify"], "labels": ("x", "y")}
    with pytest.raises(BundleError, match="classify needs one label for each of its scores"):
        served(described.model_copy(update={"tasks": {"classify": section}}))


def test_text_without_tokens_is_refused() -> None:
    class Dropping(WordTokenizer):
        def encode_text(
            self, text: str, second: str | None = None, *, with_offsets: bool = False
        ) -> EncodedText:
            return EncodedText([], [], [])

    model = served(text_classifier(), Dropping())
    with pytest.raises(InvalidRequest, match=r"texts.0 is empty: it has no tokens"):
        TASK.prepare(ClassifyRequest(texts=["\u0301"]), (), model)
