"""What a check found, and the table of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """One check of one bundle.

    Attributes:
        is_passed: None for a measurement, which has no bound.
        found: Figures, by name.
    """

    check: str
    model: str
    precision: str
    is_passed: bool | None
    found: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The fields, for a JSON file."""
        return asdict(self)


def not_measured(check: str, model: str, reason: str) -> Outcome:
    """A peer that is missing; it would run in float16."""
    return Outcome(check, model, "fp16", None, {"not measured": reason})


def missing_transformers() -> str | None:
    """Why `transformers` does not run on a card here; None if it does."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        return str(error)
    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA"


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row a check."""
    made = Table("check", "model", "precision", "result", "found", box=None)
    words = {None: "measured", True: "passed", False: "FAILED"}
    for each in outcomes:
        figures = "  ".join(f"{name} {_short(value)}" for name, value in each.found.items())
        made.add_row(each.check, each.model, each.precision, words[each.is_passed], figures)
    return made


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
