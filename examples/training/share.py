"""The score of most examples."""

from collections.abc import Sequence


def share_equal(answers: Sequence[str], truths: Sequence[str]) -> float:
    """Share of answers that are the truth."""
    pairs = zip(answers, truths, strict=True)
    return sum(answer == truth for answer, truth in pairs) / len(truths)
