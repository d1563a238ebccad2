"""Results of `triptych verify`, as they are written to JSON and drawn on the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from export.parity.judge import TOLERANCE
from export.parity.verify import Report


class Status(StrEnum):
    """Outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_REPEATED = "not repeated"


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    Attributes:
        title: What is claimed.
        detail: What was found; of a check that was not repeated, the reason.
    """

    title: str
    status: Status
    detail: str
    seconds: float = 0.0


@dataclass
class Findings:
    """Everything that one run found about one version of a bundle.

    Attributes:
        checkpoint: Where the reference was read from; None without one.
        outputs: Graph and output → its worst difference from float64, relative.
        pytorch: The same of PyTorch's float32.
        allowed: Graph and output → the difference that is allowed.
        tokens: Hypotheses compared with PyTorch's: compared, ties, differences.
        int8: Graph and output → least cosine between a row and its float32 original.
        graph_bytes: Graph → size, weights included.
        latency_ms: Measured call → batch size → median milliseconds.
        recorded: The report that was written at export.
        tools: Versions of torch and ONNX Runtime.
    """

    name: str
    version: int
    architecture: str
    precision: str
    tasks: tuple[str, ...]
    source: dict[str, Any]
    checkpoint: str | None = None
    tolerance: float = TOLERANCE
    checks: list[Check] = field(default_factory=list)
    outputs: dict[str, float] = field(default_factory=dict)
    pytorch: dict[str, float] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    int8: dict[str, float] = field(default_factory=dict)
    graph_bytes: dict[str, int] = field(default_factory=dict)
    latency_ms: dict[str, dict[int, float]] = field(default_factory=dict)
    recorded: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Whether no check failed."""
        return all(check.status is not Status.FAILED for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For `report.json` of the output folder."""
        return {"passed": self.has_passed, **asdict(self)}


class CollectingReport(Report):
    """A report that lists failures and lets the gate go on, so that all outputs are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def fail(self, message: str) -> None:
        """Keeps the message."""
        self.failures.append(message)
