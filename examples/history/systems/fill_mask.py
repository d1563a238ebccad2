"""Models that fill in masked words."""

from examples.bert.scores import TEST_SEED, agreement_accuracy, masked_word_accuracy
from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System, percent


def _fill(ask: Ask, texts: list[str], choices: list[str]) -> list[str]:
    found = task_requests.items(ask, "fill-mask", "texts", texts, targets=choices or None, top_k=1)
    return [item.masks[0][0].token for item in found]


GROUP = Group(
    name="fill-mask",
    title="Masked words",
    story="""English sentences of `examples/texts/grammar.py` with one masked word. Many
words are a matter of chance, so that no model reaches 100 %; the form of "be" is not.""",
    systems=(
        System(
            checkpoint="example-bert",
            title="BERT",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="An encoder learns a language by filling in masked words, from both sides.",
            command="python -m examples.bert.train --only example-bert",
        ),
    ),
    measures=(
        Measure(
            "right word %, compositional split",
            percent(masked_word_accuracy, _fill, TEST_SEED, "compositional"),
        ),
        Measure(
            'right form of "be" %, compositional split',
            percent(agreement_accuracy, _fill, TEST_SEED, "compositional"),
        ),
    ),
)
