"""Right answers in conversations, of any answering function.

The function under test is a plain callable, so that one measure serves PyTorch, ONNX and the API.
An answer is right where it is the expected text, letter by letter.
"""

from collections.abc import Callable, Sequence

from examples.chat.dialogue_topics import Style
from examples.chat.dialogues import Message, Question, questions
from examples.texts.grammar import Split

Reply = Callable[[list[Sequence[Message]]], list[str]]
"""Conversations → the next message of each."""

SPLITS: tuple[Split, ...] = ("compositional", "held_out")
MAX_ANSWER = 64  # tokens
TEST_QUESTIONS, TEST_SEED = 200, 7  # of each measure; reported in the model card


def accuracy(
    reply_all: Reply, split: Split, count: int, seed: int, style: Style | None = None
) -> float:
    """Share of questions about a fact told some turns before that are answered right."""
    return _share_right(reply_all, list(questions(split, count, seed, style)))


def honesty(reply_all: Reply, count: int, seed: int) -> float:
    """Share of questions about facts never told to which the answer says that."""
    return _share_right(reply_all, list(questions("train", count, seed, is_told=False)))


def swapped_accuracy(reply_all: Reply, split: Split, count: int, seed: int) -> float:
    """The control: each question comes after the turns of the next one's conversation."""
    asked = list(questions(split, count, seed))
    pairs = zip(asked, asked[1:] + asked[:1], strict=True)
    return _share_right(reply_all, [one.after(other) for one, other in pairs])


def _share_right(reply_all: Reply, asked: list[Question]) -> float:
    replies = reply_all([one.messages for one in asked])
    return sum(a == one.answer for a, one in zip(replies, asked, strict=True)) / len(asked)
