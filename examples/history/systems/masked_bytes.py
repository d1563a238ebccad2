"""A model that fills in masked bytes."""

from collections.abc import Callable
from functools import partial

from examples.bert.scores import TEST_SEED
from examples.history import task_requests
from examples.history.perceiver_text.scores import (
    FillBytesFunction,
    masked_bytes_right,
    masked_words_right,
    most_frequent_words_right,
)
from examples.history.system import Ask, Group, Measure, System
from examples.texts.splits import Split


def fill(ask: Ask, texts: list[str]) -> list[str]:
    """The most likely byte at each mask, joined."""
    found = task_requests.items(ask, "fill-mask", "texts", texts, top_k=1)
    return ["".join(mask[0].token for mask in item.masks) for item in found]


def _share(
    score: Callable[[FillBytesFunction, Split, int, int], float], ask: Ask, count: int
) -> float:
    return 100 * score(partial(fill, ask), "compositional", count, TEST_SEED)


def _frequent(_ask: Ask, count: int) -> float:
    return 100 * most_frequent_words_right("compositional", count, TEST_SEED)


GROUP = Group(
    name="masked-bytes",
    title="Masked bytes",
    story="""The sentences and words of the group above, each word masked byte by byte, so that its
length is known. Every byte of a right word is the most likely one. The control has the other words
in random order; the baseline is the most frequent word of each length, which reads nothing.""",
    systems=(
        System(
            checkpoint="history-perceiver-text",
            title="Perceiver IO, over bytes",
            year=2021,
            paper="Jaegle et al., arXiv 2107.14795",
            idea="Without a vocabulary: latents read the bytes of a text, and a query for each "
            "masked byte decodes it.",
            command="python -m examples.history.perceiver_text.train",
        ),
    ),
    measures=(
        Measure("right words %, compositional split", partial(_share, masked_words_right)),
        Measure("right bytes %, compositional split", partial(_share, masked_bytes_right)),
        Measure(
            "control: shuffled words",
            partial(_share, partial(masked_words_right, is_shuffled=True)),
        ),
        Measure("baseline: most frequent word", _frequent),
    ),
)
