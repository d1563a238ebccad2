"""Taggers of parts of speech."""

from examples.history import task_requests
from examples.history.recurrent.scores import (
    TEST_SEED,
    Spans,
    ambiguous_accuracy,
    tag_f1,
    unknown_accuracy,
)
from examples.history.system import Ask, Group, Measure, System, percent


def tagged(ask: Ask, texts: list[str]) -> list[Spans]:
    """Every word of each text with its tag."""
    found = task_requests.items(ask, "tag", "texts", texts, aggregation="none", return_outside=True)
    return [[(one.start, one.end, one.label) for one in item.tokens] for item in found]


GROUP = Group(
    name="parts-of-speech",
    title="Parts of speech",
    story="""Sentences of `examples/history/recurrent/parts_of_speech.py`: "my dog ate the
assignment" is possessive, noun, verb, determiner, noun. Compositional sentences have a pair of
content words that training never combines. Many words have several parts of speech, and made-up
words none that could be known, so that only the sentence decides.""",
    systems=(
        System(
            checkpoint="history-rnn-tagger",
            title="Bidirectional LSTM",
            year=2005,
            paper="Graves & Schmidhuber 2005; Schuster & Paliwal 1997",
            idea="One network reads from the left and one from the right; each word has both.",
            command="python -m examples.history.recurrent.train --only history-rnn-tagger",
        ),
    ),
    measures=(
        Measure("F1 %, held out", percent(tag_f1, tagged, TEST_SEED, "held_out")),
        Measure("F1 %, compositional", percent(tag_f1, tagged, TEST_SEED, "compositional")),
        Measure(
            "right %, words with several tags, compositional",
            percent(ambiguous_accuracy, tagged, TEST_SEED, "compositional"),
        ),
        Measure("right %, made-up words", percent(unknown_accuracy, tagged, TEST_SEED, "held_out")),
    ),
)
