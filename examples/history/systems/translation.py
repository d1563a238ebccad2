"""Translators of the gazette, English to French: what attention buys, by length of the sentence."""

from functools import partial

from examples.en_fr.scores import LENGTHS, exact_share, length_score, score
from examples.history import task_requests
from examples.history.system import Ask, Curve, Group, Measure, System
from examples.texts.splits import Split


def _bleu(split: Split, ask: Ask, count: int) -> float:
    return score(partial(task_requests.translations, ask), split, count)


def _exact(ask: Ask, count: int) -> float:
    return 100 * exact_share(partial(task_requests.translations, ask), "held_out", count)


def _of_length(first: int, last: int) -> Measure:
    def bleu(ask: Ask, count: int) -> float:
        translate = partial(task_requests.translations, ask)
        return length_score(translate, first, last, max(1, count // 2))

    return Measure(f"{first} to {last}", bleu)


_TRAIN = "python -m examples.history.gazette.train --system"

GROUP = Group(
    name="translation",
    title="Translation, English to French",
    story="""The gazette of `examples/en_fr/gazette.py`: official sentences, each with
exactly one French rendering. The `history-*` systems have about the same number of parameters
(455,000 to 480,000) and are trained on the same sentences, words and steps, after which those
without attention were still improving: the table compares equal budgets. `example-en-fr` is larger
and was trained longer. The length is that of the English sentence in words and marks; these
sentences are of the compositional split.""",
    systems=(
        System(
            checkpoint="history-seq2seq-initial",
            title="Encoder–decoder, context as first state",
            year=2014,
            paper="Sutskever, Vinyals and Le, arXiv 1409.3215",
            idea="One network reads a sentence into a vector, another begins with it.",
            command=f"{_TRAIN} initial",
        ),
        System(
            checkpoint="history-seq2seq-context",
            title="Encoder–decoder, context at every step",
            year=2014,
            paper="Cho et al., arXiv 1406.1078",
            idea="The decoder reads the sentence's vector again at every step.",
            command=f"{_TRAIN} context",
        ),
        System(
            checkpoint="history-seq2seq-mean",
            title="Encoder–decoder, averaged context",
            year=2014,
            paper="after Cho et al., arXiv 1406.1078",
            idea="""The vector is the mean of the encoder's states: what attention would be with
equal weights.""",
            command=f"{_TRAIN} mean",
        ),
        System(
            checkpoint="history-attention",
            title="Attention, small",
            year=2015,
            paper="Bahdanau, Cho and Bengio, arXiv 1409.0473",
            idea="""The decoder looks at all states of the encoder, at every step, with weights
that it computes: no sentence has to fit into one vector.""",
            command=f"{_TRAIN} attention",
        ),
        System(
            checkpoint="example-en-fr",
            title="Attention",
            year=2015,
            paper="Bahdanau, Cho and Bengio, arXiv 1409.0473",
            idea="The same with three times the parameters.",
            command="python -m examples.en_fr.train",
        ),
        System(
            checkpoint="history-transformer",
            title="Transformer",
            year=2017,
            paper="Vaswani et al., arXiv 1706.03762",
            idea="""Attention alone: every word looks at every other in each layer, all words of a
training sentence at once.""",
            command=f"{_TRAIN} transformer",
        ),
    ),
    measures=(
        Measure("BLEU, held-out sentences", partial(_bleu, "held_out")),
        Measure("BLEU, compositional split", partial(_bleu, "compositional")),
        Measure("exact %, held-out sentences", _exact),
    ),
    curve=Curve(
        title="BLEU, by length of the sentence",
        axis="words and marks of the English sentence",
        points=tuple(_of_length(first, last) for first, last in LENGTHS),
    ),
)
