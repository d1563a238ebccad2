"""Language models that answer by the examples in their prompt."""

from functools import partial

from examples.gpt.episodes import FRESH, Question
from examples.gpt.scores import MAX_ANSWER, TEST_SEED, accuracy, mean
from examples.history.system import Ask, Curve, Group, Measure, System

_SHOTS = (0, 1, 2, 4, 8)


def _answers(ask: Ask, questions: list[Question]) -> list[str]:
    return [_answer(ask, question) for question in questions]


def _answer(ask: Ask, question: Question) -> str:
    fields = {
        "prompts": [question.prompt],
        "instruction": question.instruction,
        "examples": [(example.given, example.answer) for example in question.examples],
        "max_new_tokens": MAX_ANSWER,
    }
    (item,) = ask("generate", fields)
    return str(item.text)


def _right(shots: int, ask: Ask, count: int) -> float:
    share = max(1, count // len(FRESH))
    answer = partial(_answers, ask)
    return 100 * mean([accuracy(answer, family, shots, share, TEST_SEED) for family in FRESH])


GROUP = Group(
    name="few-shot",
    title="Tasks that only the prompt defines",
    story="""The episodes of `examples/gpt/episodes.py`: the answer follows from the
examples of the prompt and from nothing else, because their bindings are drawn anew for each
    episode.""",
    systems=(
        System(
            checkpoint="example-gpt",
            title="GPT-2, few-shot",
            year=2020,
            paper="Brown et al., arXiv 2005.14165; Radford et al. 2019",
            idea="A language model learns a task from examples in its prompt, without training.",
            command="python -m examples.gpt.train",
        ),
    ),
    measures=(Measure("right %, 4-shot, withheld bindings", partial(_right, 4)),),
    curve=Curve(
        title="right %, by examples in the prompt",
        axis="examples in the prompt",
        points=tuple(Measure(str(shots), partial(_right, shots)) for shots in _SHOTS),
    ),
)
