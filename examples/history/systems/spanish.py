"""Translators of the example world, Spanish to English."""

from functools import partial

from examples.es_en.scores import exact_share, score
from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System
from examples.texts.splits import Split


def _bleu(split: Split, ask: Ask, count: int) -> float:
    return score(partial(task_requests.translations, ask), split, count)


def _exact(ask: Ask, count: int) -> float:
    return 100 * exact_share(partial(task_requests.translations, ask), "compositional", count)


GROUP = Group(
    name="spanish",
    title="Translation, Spanish to English",
    story="""The grammar of `examples/texts/grammar.py`. The compositional split has pairs of
a word and a construction that training never shows together.""",
    systems=(
        System(
            checkpoint="example-es-en",
            title="Transformer, as Marian has it",
            year=2018,
            paper="Junczys-Dowmunt et al., arXiv 1804.00344; Vaswani et al., arXiv 1706.03762",
            idea="""The Transformer of 2017 in a fast translation toolkit, whose checkpoints of a
thousand language pairs are published as opus-mt.""",
            command="python -m examples.es_en.train",
        ),
    ),
    measures=(
        Measure("BLEU, compositional split", partial(_bleu, "compositional")),
        Measure("BLEU, held-out sentences", partial(_bleu, "held_out")),
        Measure("exact %, compositional split", _exact),
    ),
)
