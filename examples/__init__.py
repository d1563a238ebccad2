"""The example checkpoints: what each was trained on, how, and what it scores.

Outside the wheel: nothing that is installed imports them, which import-linter checks.
"""

from pathlib import Path

CHECKPOINTS = Path(__file__).parent / "checkpoints"
HISTORY_CHECKPOINTS = Path(__file__).parent / "history" / "checkpoints"


def checkpoint(name: str) -> Path:
    """The folder of a checkpoint: an example, or a system of the course's history."""
    return (HISTORY_CHECKPOINTS if name.startswith("history-") else CHECKPOINTS) / name
