"""Classifiers of the sentiment of reviews."""

from examples.bert.scores import TEST_SEED, same_words_accuracy, sentiment_accuracy
from examples.history import task_requests
from examples.history.system import Group, Measure, System, percent

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
        Measure(
            "right %, withheld negations",
            percent(sentiment_accuracy, task_requests.text_classes, TEST_SEED, "compositional"),
        ),
        Measure(
            "right %, two reviews of the same words",
            percent(same_words_accuracy, task_requests.text_classes, TEST_SEED),
        ),
    ),
)
