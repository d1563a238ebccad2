"""Classifiers of the sentiment of reviews."""

from functools import partial

from examples.bert.scores import TEST_SEED, same_words_accuracy, sentiment_accuracy
from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System


def _withheld(ask: Ask, count: int) -> float:
    classify = partial(task_requests.text_classes, ask)
    return 100 * sentiment_accuracy(classify, "compositional", count, TEST_SEED)


def _same_words(ask: Ask, count: int) -> float:
    return 100 * same_words_accuracy(partial(task_requests.text_classes, ask), count, TEST_SEED)


GROUP = Group(
    name="sentiment",
    title="Sentiment of reviews",
    story="""The reviews of `examples/bert/reviews.py`, with negations that training never
combines with their words. Of two reviews of the same words, a bag of words gets one right.""",
    systems=(
        System(
            checkpoint="history-rnn-sentiment",
            title="LSTM, many to one",
            year=1997,
            paper="Hochreiter and Schmidhuber 1997; forget gates: Gers et al. 2000",
            idea="Gates decide what a state keeps, so that its end still has what mattered early.",
            command="python -m examples.history.recurrent.train --only history-rnn-sentiment",
        ),
        System(
            checkpoint="example-bert-sentiment",
            title="BERT with a classification head",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="One pre-trained encoder is fine-tuned for each task, with one more layer.",
            command="python -m examples.bert.train --only example-bert-sentiment",
        ),
    ),
    measures=(
        Measure("right %, withheld negations", _withheld),
        Measure("right %, two reviews of the same words", _same_words),
    ),
)
