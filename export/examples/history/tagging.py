"""Taggers of the roles in a sentence."""

from functools import partial

from export.examples.history import asking
from export.examples.history.system import Ask, Group, Measure, System
from export.examples.scores.bert import TEST_SEED, role_f1
from export.examples.texts.facts import Roles
from export.examples.texts.splits import Split


def _tag(ask: Ask, texts: list[str]) -> list[Roles]:
    found = asking.items(ask, "tag", "texts", texts, aggregation="simple")
    return [[(one.start, one.end, one.label) for one in item.tokens] for item in found]


def _f1(split: Split, ask: Ask, count: int) -> float:
    return 100 * role_f1(partial(_tag, ask), split, count, TEST_SEED)


GROUP = Group(
    name="tagging",
    title="Roles in a sentence",
    story="""The facts of `export/examples/texts/facts.py`: who did what, where and when. Held-out
sentences have made-up names that training never shows.""",
    systems=(
        System(
            checkpoint="example-bert-tags",
            title="BERT with a tagging head",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="Every token is classified from both sides of its sentence.",
            command="python -m export.examples.training.bert --only example-bert-tags",
        ),
    ),
    measures=(
        Measure("F1 %, withheld names", partial(_f1, "held_out")),
        Measure("F1 %, compositional split", partial(_f1, "compositional")),
    ),
)
