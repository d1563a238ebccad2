"""A model that reads the words for pictures from the pictures of its prompt."""

from functools import partial

from examples.history import task_requests
from examples.history.flamingo.scores import (
    MAX_ANSWER,
    SHOTS,
    PictureQuestion,
    accuracy,
    swapped_accuracy,
)
from examples.history.system import Ask, Curve, Group, Measure, System
from examples.texts.bindings import Split


def _answers(ask: Ask, questions: list[PictureQuestion]) -> list[str]:
    return [_answer(ask, question) for question in questions]


def _answer(ask: Ask, question: PictureQuestion) -> str:
    fields = {
        "prompts": ["<image>"],
        "examples": [("<image>", words) for words in question.shots],
        "images": task_requests.as_pngs(question.images),
        "max_new_tokens": MAX_ANSWER,
    }
    (item,) = ask("generate", fields)
    return str(item.text)


def _right(shots: int, split: Split | None, ask: Ask, count: int) -> float:
    return 100 * accuracy(partial(_answers, ask), shots, split, count)


def _swapped(ask: Ask, count: int) -> float:
    return 100 * swapped_accuracy(partial(_answers, ask), 4, "held_out", count)


GROUP = Group(
    name="picture-words",
    title="Words for pictures that only the prompt defines",
    story="""The episodes of `examples/history/flamingo/picture_episodes.py`: pictures of one thing,
each with a word for its colour and a word for its shape, and a last picture without words. Words
are made up and drawn for each episode; those of the scores are in no training episode, and every
picture has a combination of attributes that is in no training picture. The colour that is asked
about is in one shot and the shape in another, so that no answer is that of a shot; a guess among
the words of the prompt is right in 25, 6 and 2 % of questions with 2, 4 and 8 shots. Without shots,
the model has plain words for the picture, "red circle". The control shows the next question's
    picture.""",
    systems=(
        System(
            checkpoint="history-flamingo",
            title="Flamingo, as Idefics has it",
            year=2022,
            paper="Alayrac et al., arXiv 2204.14198; Laurençon et al. 2023, arXiv 2306.16527",
            idea="Pictures stand between the words of a prompt, and examples need no training.",
            command="python -m examples.history.flamingo.train",
        ),
    ),
    measures=(
        Measure("right %, plain words, no shots", partial(_right, 0, None)),
        Measure("right %, plain words, 4 shots", partial(_right, 4, None)),
        Measure("right %, new words, no shots", partial(_right, 0, "held_out")),
        Measure("right %, words of training, 4 shots", partial(_right, 4, "train")),
        Measure("right %, new words, 4 shots", partial(_right, 4, "held_out")),
        Measure("control: another picture, new words, 4 shots", _swapped),
    ),
    curve=Curve(
        title="right %, new words, by shots",
        axis="pictures with words before the one that is asked about",
        points=tuple(Measure(str(shots), partial(_right, shots, "held_out")) for shots in SHOTS),
    ),
)
