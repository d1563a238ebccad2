"""Taggers of the roles in a sentence."""

from examples.bert.fact_wordings import Roles
from examples.bert.scores import TEST_SEED, role_f1
from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System, percent


def _tag(ask: Ask, texts: list[str]) -> list[Roles]:
    found = task_requests.items(ask, "tag", "texts", texts, aggregation="simple")
    return [[(one.start, one.end, one.label) for one in item.tokens] for item in found]


GROUP = Group(
    name="tagging",
    title="Roles in a sentence",
    story="""The facts of `examples/bert/facts.py`: who did what, where and when. Held-out
sentences have made-up names that training never shows.""",
    systems=(
        System(
            checkpoint="example-bert-tags",
            title="BERT with a tagging head",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="Every token is classified from both sides of its sentence.",
            command="python -m examples.bert.train --only example-bert-tags",
        ),
    ),
    measures=(
        Measure("F1 %, withheld names", percent(role_f1, _tag, TEST_SEED, "held_out")),
        Measure("F1 %, compositional split", percent(role_f1, _tag, TEST_SEED, "compositional")),
    ),
)
