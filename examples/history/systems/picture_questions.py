"""A language model that reads pictures as words of its prompt, and answers questions."""

from functools import partial

from PIL import Image

from examples.history.system import Ask, Group, Measure, System, percent
from examples.history.task_requests import question_about
from examples.vqa.scores import TEST_SEED, accuracy, swapped_accuracy

KINDS = ("colour", "shape", "texture", "relation", "description")


def _answers(ask: Ask, asked: list[tuple[Image.Image, str]]) -> list[str]:
    return [str(ask("chat", question_about(*one))[0].text) for one in asked]


def _right(kind: str, ask: Ask, count: int) -> float:
    return 100 * accuracy(partial(_answers, ask), count, TEST_SEED)[kind]


GROUP = Group(
    name="picture-questions",
    title="Questions about pictures",
    story="""Scenes of one or two things, each with a question of `examples/vqa/questions.py`: about
colour, shape, texture or size of the thing that another attribute or its place points at, how many
there are, whether there is such a thing, whether one is left of or above the other, or a
description. Every picture has a combination of attributes that is in no training picture; an answer
is right where it is the expected text, letter by letter. Answers to yes or no questions are guessed
half of the time. The control shows the next question's picture.""",
    systems=(
        System(
            checkpoint="example-vqa",
            title="LLaVA",
            year=2023,
            paper="Liu et al., arXiv 2304.08485",
            idea="The patches of an image are words of the prompt of a language model.",
            command="python -m examples.vqa.train",
        ),
    ),
    measures=(
        Measure("right %, all questions", partial(_right, "all")),
        *(Measure(f"right %, {kind}", partial(_right, kind)) for kind in KINDS),
        Measure("control: another picture", percent(swapped_accuracy, _answers, TEST_SEED)),
    ),
)
