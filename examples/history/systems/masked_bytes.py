"""A model that fills in masked bytes."""

from typing import Any

from examples.bert.scores import TEST_SEED
from examples.history import task_requests
from examples.history.perceiver_text.scores import (
    masked_bytes_right,
    masked_words_right,
    most_frequent_words_right,
)
from examples.history.system import Ask, Group, Measure, System, percent


def fill(ask: Ask, texts: list[str]) -> list[str]:
    """The most likely byte at each mask, joined."""
    found = task_requests.items(ask, "fill-mask", "texts", texts, top_k=1)
    return ["".join(mask[0].token for mask in item.masks) for item in found]


def _frequent(_ask: Ask, count: int) -> float:
    return 100 * most_frequent_words_right("compositional", count, TEST_SEED)


_ASKED: Any = (fill, TEST_SEED, "compositional")

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
        Measure("right words %, compositional split", percent(masked_words_right, *_ASKED)),
        Measure("right bytes %, compositional split", percent(masked_bytes_right, *_ASKED)),
        Measure("control: shuffled words", percent(masked_words_right, *_ASKED, is_shuffled=True)),
        Measure("baseline: most frequent word", _frequent),
    ),
)
