"""Conversations of the chat example, and its committed folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest

from examples.chat.dialogue_topics import BRIEF, PLAIN, SPANISH, TOPICS, Style
from examples.chat.dialogues import Message, any_fact, dialogues, questions, split_of
from examples.chat.scores import SPLITS, accuracy, honesty, swapped_accuracy
from examples.chat.train import OUTPUT
from examples.gpt.scores import replier
from examples.texts.grammar import Split

DIALOGUES_SPLITS: tuple[Split, ...] = ("train", "compositional", "held_out")
COUNT = 200


def test_dialogues_and_questions_are_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[object]:
        rows: list[object] = [one.with_turns(6) for one in islice(dialogues(seed), 20)]
        return [*rows, *questions("held_out", 20, seed)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_training_tells_and_answers_no_withheld_fact() -> None:
    found = []
    for dialogue in islice(dialogues(5), 1000):
        dialogue.with_turns(7)
        found += [split_of(fact) for fact in dialogue.told]
    assert len(found) > 2000
    assert set(found) == {"train"}


@pytest.mark.parametrize("split", DIALOGUES_SPLITS)
def test_answers_follow_from_the_conversation(split: Split) -> None:
    for question in questions(split, COUNT, 7, PLAIN):
        answer, said = question.answer, [one["content"] for one in question.messages[:-1]]
        value = re.sub(r"\W+$", "", answer).split()[-1]
        assert question.messages[-1]["role"] == "user"
        assert any(value in text for text in said if not text.endswith("?")) or "years" in answer
        assert not any(answer in text for text in said)


@pytest.mark.parametrize("style", [SPANISH, BRIEF], ids=["Spanish", "brief"])
def test_the_system_message_chooses_language_and_length(style: Style) -> None:
    plain = {one.answer for one in questions("train", COUNT, 7, PLAIN)}
    asked = list(questions("train", COUNT, 7, style))
    for question in asked:
        system = question.messages[0]
        assert system["role"] == "system"
        assert system["content"].endswith(style.instructions)
    assert not plain & {one.answer for one in asked}
    assert (max(len(one.answer.split()) for one in asked) <= 4) == style.is_brief


def test_what_was_told_twice_has_its_last_value() -> None:
    (dialogue,) = islice(dialogues(2), 1)
    name = next(topic for topic in TOPICS if topic.name == "name")
    rng = Random(1)
    first, second = (any_fact(rng, "train", name) for _ in range(2))
    dialogue.tell(first)
    dialogue.tell(second)
    answer = dialogue.ask(first).answer
    assert second.value.english in answer
    assert first.value.english not in answer


def test_scores_of_answers_that_are_known() -> None:
    truths = {str(one.messages): one.answer for one in questions("held_out", 40, 3)}

    def replies(conversations: list[Sequence[Message]]) -> list[str]:
        return [truths.get(str(tuple(one)), "") for one in conversations]

    assert accuracy(replies, "held_out", 40, 3) == 1.0
    assert accuracy(lambda asked: [""] * len(asked), "held_out", 40, 3) == 0.0
    assert swapped_accuracy(replies, "held_out", 40, 3) == 0.0
    assert honesty(lambda asked: ["You have not told me."] * len(asked), 100, 3) > 0.3


SCORES_COUNT = 30


@pytest.fixture(scope="module")
def reply_all():
    return replier(OUTPUT)


def test_checkpoint_is_small():
    files = [path for path in OUTPUT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3_000_000


def test_answers_follow_from_earlier_turns(reply_all):
    for split in SPLITS:
        swapped = swapped_accuracy(reply_all, split, SCORES_COUNT, seed=3)
        assert swapped < 0.1
        assert accuracy(reply_all, split, SCORES_COUNT, seed=3) >= swapped + 0.5


def test_answers_are_spanish_where_the_system_message_asks_for_it(reply_all):
    assert accuracy(reply_all, "held_out", SCORES_COUNT, 3, SPANISH) >= 0.7


def test_what_was_not_told_is_not_invented(reply_all):
    assert honesty(reply_all, SCORES_COUNT, seed=3) >= 0.9
