"""Translators of the gazette, English to French: what attention buys, by length of the sentence."""

from functools import partial

from export.examples.history import asking
from export.examples.history.system import Ask, Curve, Group, Measure, System
from export.examples.score_gazette import exact_share, length_share, score
from export.examples.splits import Split

_LENGTHS = ((4, 7), (8, 11), (12, 15), (16, 19), (20, 28))
"""First and last number of words and marks."""


def _bleu(split: Split, ask: Ask, count: int) -> float:
    return score(partial(asking.translations, ask), split, count)


def _exact(ask: Ask, count: int) -> float:
    return 100 * exact_share(partial(asking.translations, ask), "held_out", count)


def _of_length(first: int, last: int) -> Measure:
    def share(ask: Ask, count: int) -> float:
        translate = partial(asking.translations, ask)
        return 100 * length_share(translate, first, last, max(1, count // 2))

    return Measure(f"{first} to {last}", share)


GROUP = Group(
    name="translation",
    title="Translation, English to French",
    story="""The gazette of `export/examples/gazette.py`: official sentences, each with exactly one
French rendering. Every system is trained on sentences of the same grammar and scored on sentences
that training never shows.""",
    systems=(
        System(
            checkpoint="example-en-fr",
            title="Bahdanau's attention, GRU",
            year=2015,
            paper="Bahdanau, Cho and Bengio, arXiv 1409.0473",
            idea="""The decoder looks at all states of the encoder, at every step, with weights
that it computes: no sentence has to fit into one vector.""",
            command="python -m export.examples.train_bahdanau",
        ),
    ),
    measures=(
        Measure("BLEU, held-out sentences", partial(_bleu, "held_out")),
        Measure("BLEU, compositional split", partial(_bleu, "compositional")),
        Measure("exact %, held-out sentences", _exact),
    ),
    curve=Curve(
        title="exact %, by length of the sentence",
        axis="words and marks of the English sentence",
        points=tuple(_of_length(first, last) for first, last in _LENGTHS),
    ),
)
