"""The committed Qwen3 is small, and answers by the conversation and the system message."""

import pytest

from examples.chat.dialogue_topics import SPANISH
from examples.chat.scores import SPLITS, accuracy, honesty, swapped_accuracy
from examples.chat.train import OUTPUT
from examples.gpt.continuation import replier

COUNT = 30


@pytest.fixture(scope="module")
def reply_all():
    return replier(OUTPUT)


def test_checkpoint_is_small():
    files = [path for path in OUTPUT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3_000_000


def test_answers_follow_from_earlier_turns(reply_all):
    for split in SPLITS:
        swapped = swapped_accuracy(reply_all, split, COUNT, seed=3)
        assert swapped < 0.1
        assert accuracy(reply_all, split, COUNT, seed=3) >= swapped + 0.5


def test_answers_are_spanish_where_the_system_message_asks_for_it(reply_all):
    assert accuracy(reply_all, "held_out", COUNT, 3, SPANISH) >= 0.7


def test_what_was_not_told_is_not_invented(reply_all):
    assert honesty(reply_all, COUNT, seed=3) >= 0.9
