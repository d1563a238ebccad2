"""The example checkpoints: what each was trained on, how, and what it scores.

Outside the wheel: nothing that is installed imports them, which import-linter checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CHECKPOINTS = Path(__file__).parent / "checkpoints"
HISTORY_CHECKPOINTS = Path(__file__).parent / "history" / "checkpoints"


def checkpoint(name: str) -> Path:
    """The folder of a checkpoint: an example, or a system of the course's history."""
    return (HISTORY_CHECKPOINTS if name.startswith("history-") else CHECKPOINTS) / name


def share_equal(answers: Sequence[str], truths: Sequence[str]) -> float:
    """Share of answers that are the truth."""
    pairs = zip(answers, truths, strict=True)
    return sum(answer == truth for answer, truth in pairs) / len(truths)
