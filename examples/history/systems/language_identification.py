"""Classifiers of the language of a text."""

from functools import partial

from examples.history import task_requests
from examples.history.recurrent.everyday_sentences import unrelated_sentences
from examples.history.recurrent.scores import (
    PREFIXES,
    TEST_SEED,
    language_accuracy,
    language_sentences,
)
from examples.history.system import Ask, Curve, Group, Measure, System
from examples.texts.splits import Split


def _right(split: Split, prefix: int | None, ask: Ask, count: int) -> float:
    asked = language_sentences(split, count, TEST_SEED)
    return 100 * language_accuracy(partial(task_requests.text_classes, ask), asked, prefix)


def _unrelated(ask: Ask, count: int) -> float:
    asked = unrelated_sentences()[:count]
    return 100 * language_accuracy(partial(task_requests.text_classes, ask), asked)


GROUP = Group(
    name="languages",
    title="The language of a text",
    story="""Sentences of six languages (`examples/history/recurrent/everyday_sentences.py`), read
character by character. Unrelated sentences come from no pattern: they were written for the test
    alone.""",
    systems=(
        System(
            checkpoint="history-rnn-languages",
            title="GRU over characters",
            year=2014,
            paper="Cho et al., arXiv 1406.1078",
            idea="Two gates decide what a state keeps; the last state stands for the whole text.",
            command="python -m examples.history.recurrent.train --only history-rnn-languages",
        ),
    ),
    measures=(
        Measure("right %, held out", partial(_right, "held_out", None)),
        Measure("right %, compositional", partial(_right, "compositional", None)),
        Measure("right %, unrelated sentences", _unrelated),
    ),
    curve=Curve(
        title="right %, by characters that are read",
        axis="characters",
        points=tuple(
            Measure(str(prefix), partial(_right, "held_out", prefix)) for prefix in PREFIXES
        ),
    ),
)
