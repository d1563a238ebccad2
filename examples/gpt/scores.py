"""Few-shot accuracy of any answering function.

The function under test is a plain callable, so that one measure serves PyTorch, ONNX and the API.
All bindings of the fresh families are withheld from training.
"""

from collections.abc import Callable, Sequence

from examples.gpt.episodes import Family, Question, questions
from examples.training.share import share_equal

Answer = Callable[[list[Question]], list[str]]

SHOTS = (0, 1, 4, 8)
MAX_ANSWER = 12  # tokens
TEST_QUESTIONS, TEST_SEED = 200, 7  # of each family; reported in the model card


def accuracy(answer_all: Answer, family: Family, shots: int, count: int, seed: int) -> float:
    """Share of questions whose answer equals the bound one."""
    asked = list(questions(family, shots, count, seed))
    return share_equal(answer_all(asked), [question.answer for question in asked])


def swapped_accuracy(
    answer_all: Answer, family: Family, shots: int, count: int, seed: int
) -> float:
    """The control: each question gets the examples of the next one."""
    asked = list(questions(family, shots, count, seed))
    foreign = [
        Question(one.instruction, other.examples, one.prompt, one.answer)
        for one, other in zip(asked, asked[1:] + asked[:1], strict=True)
    ]
    return share_equal(answer_all(foreign), [question.answer for question in asked])


def mean(shares: Sequence[float]) -> float:
    """The mean over families."""
    return sum(shares) / len(shares)
