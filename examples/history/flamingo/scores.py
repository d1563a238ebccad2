"""Few-shot accuracy over pictures, of any answering function.

The function under test is a plain callable, so that one measure serves PyTorch, ONNX and the API.
All pictures' combinations of attributes are withheld from training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from PIL import Image

from examples import share_equal
from examples.history.flamingo.picture_episodes import Episode, Pool, questions
from examples.texts.bindings import Split

SHOTS = (0, 2, 4, 8)
TEST_COUNT, TEST_SEED = 200, 7
MAX_ANSWER = 4  # tokens
_PICTURES = 400

WORDS: dict[str, Split | None] = {
    "plain words": None,
    "made-up words of training": "train",
    "made-up words that training lacks": "held_out",
}
"""What is measured → the words that pictures are named with."""


@dataclass(frozen=True)
class PictureQuestion:
    """Pictures, the words for all but the last one, and those that are right for it."""

    images: tuple[Image.Image, ...]
    shots: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, episode: Episode, pool: Pool) -> "PictureQuestion":
        """The question of an episode."""
        *shots, answer = (" ".join(shot.words) for shot in episode)
        return cls(tuple(pool.images[shot.picture] for shot in episode), tuple(shots), answer)


Answer = Callable[[list[PictureQuestion]], list[str]]


def accuracy(
    answer_all: Answer, shots: int, split: Split | None, count: int, seed: int = TEST_SEED
) -> float:
    """Share of questions with both words right."""
    asked = picture_questions(shots, split, count, seed)
    return share_equal(answer_all(asked), [one.answer for one in asked])


def swapped_accuracy(
    answer_all: Answer, shots: int, split: Split | None, count: int, seed: int = TEST_SEED
) -> float:
    """The control: the picture that is asked about is the next question's."""
    asked = picture_questions(shots, split, count, seed)
    foreign = [
        replace(one, images=(*one.images[:-1], other.images[-1]))
        for one, other in zip(asked, asked[1:] + asked[:1], strict=True)
    ]
    return share_equal(answer_all(foreign), [one.answer for one in asked])


def picture_questions(
    shots: int, split: Split | None, count: int, seed: int
) -> list[PictureQuestion]:
    """Questions about withheld pictures, the same ones for the same arguments."""
    pool = _withheld_pictures(seed)
    return [PictureQuestion.of(one, pool) for one in questions(pool, shots, split, count, seed)]


@cache
def _withheld_pictures(seed: int) -> Pool:
    return Pool.drawn("heldout", _PICTURES, seed)
