"""Questions about scenes, and what their training reads."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from transformers import LlavaProcessor

from examples.scenes.scene import Scene, Thing, scenes
from examples.vqa.questions import Question, draw_questions
from examples.vqa.scores import Asked, accuracy, swapped_accuracy
from examples.vqa.train import OUTPUT, row_of

RING = Thing("large", "red", "striped", "ring")
STAR = Thing("small", "blue", "plain", "star")
BESIDE = Scene(RING, "gray", "left", STAR)
ABOVE = Scene(RING, "gray", "below", Thing("large", "red", "dotted", "ring"))
ALONE = Scene(STAR, "white")


def drawn(scene: Scene, count: int = 600) -> dict[str, str]:
    """Texts of questions, in one spelling, with their answers."""
    found: dict[str, str] = {}
    for question in islice(draw_questions(scene, np.random.default_rng(1)), count):
        text = question.text.lower().replace("color ", "colour ")
        assert found.setdefault(text, question.answer) == question.answer
    return found


def test_answers_are_those_of_the_scene() -> None:
    expected = {
        "how many shapes are there?": "two",
        "what colour is the background?": "gray",
        "what colour is the left shape?": "red",
        "which shape is the right thing?": "star",
        "which shape is the blue thing?": "star",
        "which texture has the ring?": "striped",
        "is the right shape small or large?": "small",
        "is there a red ring?": "yes",
        "is there a blue ring?": "no",
        "is the ring to the left of the star?": "yes",
        "is the ring to the right of the star?": "no",
        "where is the star?": "to the right of the ring",
        "what do you see?": "a large red striped ring to the left of a small blue star on a gray "
        "background",
    }
    assert expected.items() <= drawn(BESIDE).items()


def test_a_pair_that_shares_an_attribute_is_told_apart_by_another() -> None:
    asked = drawn(ABOVE)
    assert asked["which texture has the upper shape?"] == "dotted"
    assert asked["which texture has the lower shape?"] == "striped"
    for words in ("the ring", "the red", "the large"):
        assert not any(words in text and "is there" not in text for text in asked), words


def test_one_thing_has_no_place() -> None:
    asked = drawn(ALONE)
    assert asked["what colour is the shape?"] == "blue"
    assert asked["which shape is the thing?"] == "star"
    assert not any(text.startswith("where") or "upper" in text for text in asked)


def test_spellings_vary() -> None:
    asked = list(islice(draw_questions(BESIDE, np.random.default_rng(2)), 300))
    texts = {question.text for question in asked}
    assert {"What color is the background?", "what colour is the background?"} <= texts
    assert "Describe this image." in texts
    assert all(question.answer == question.answer.lower() for question in asked)


def test_half_of_the_answers_are_yes() -> None:
    rng = np.random.default_rng(3)
    answers = Counter(
        question.answer
        for scene in scenes("heldout", 300, 5)
        for question in islice(draw_questions(scene, rng), 8)
        if question.kind in ("presence", "relation")
    )
    assert set(answers) == {"yes", "no"}
    assert answers["yes"] / answers.total() == pytest.approx(0.5, abs=0.08)


def test_scores_of_answers_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: Asked = []
    for scene in scenes("heldout", 60, 4):
        (question,) = islice(draw_questions(scene, np.random.default_rng(len(pairs))), 1)
        pairs.append((np.zeros((1, 1)), question))
    monkeypatch.setattr("examples.vqa.scores._asked", lambda count, seed: pairs)
    known = {id(picture): question.answer for picture, question in pairs}

    def answer_all(asked: list[tuple[object, str]]) -> list[str]:
        return [known[id(picture)] for picture, _ in asked]

    shares = accuracy(answer_all, 60, 4)
    assert set(shares.values()) == {1.0}
    assert set(shares) == {"all", *(question.kind for _, question in pairs)}
    assert swapped_accuracy(answer_all, 60, 4) < 0.5


def test_kinds_are_scored_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [
        (None, Question("count", "how many?", "two")),
        (None, Question("place", "where?", "a")),
    ]
    monkeypatch.setattr("examples.vqa.scores._asked", lambda count, seed: pairs)
    shares = accuracy(lambda asked: ["two"] * len(asked), 2, 1)
    assert shares == {"all": 0.5, "count": 1.0, "place": 0.0}


IGNORED = -100


def test_rows_are_the_templates_conversations_and_answers_are_learnt() -> None:
    processor = LlavaProcessor.from_pretrained(OUTPUT)
    asked = [
        Question("count", "how many shapes are there?", "two"),
        Question("place", "where is the ring?", "above the star"),
    ]
    messages = []
    for place, question in enumerate(asked):
        image = [] if place else [{"type": "image"}]
        content = [*image, {"type": "text", "text": question.text}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": question.answer})
    laid_out = processor.apply_chat_template(messages).replace("<image>", "<image>" * 64)
    tokens, labels = row_of(asked, processor)
    assert tokens == processor.tokenizer(laid_out)["input_ids"]
    learnt = [token for token, label in zip(tokens, labels, strict=True) if label != IGNORED]
    assert learnt == [label for label in labels if label != IGNORED]
    assert processor.tokenizer.decode(learnt) == "two<|im_end|>above the star<|im_end|>"


@pytest.mark.parametrize("limit", [5_000_000])
def test_checkpoint_is_small(limit: int) -> None:
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= limit
