"""Results of `triptych verify`: in JSON, on the page, and in lines for the console."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from export.parity.judge import MULTIPLE, TOLERANCE
from export.parity.verify import Report
from export.quantization.int8_parity import LEAST_COSINE

_SMALLEST = 1e-10
"""Left end of logarithmic charts; a difference of zero has no bar."""


@dataclass(frozen=True)
class Bar:
    """One line of a chart.

    Attributes:
        length: Share of the chart's width, 0 to 1.
        is_bad: Beyond the limit.
    """

    label: str
    text: str
    length: float
    is_bad: bool = False


@dataclass(frozen=True)
class Chart:
    """Horizontal bars.

    Attributes:
        limit: Where the limit's line is, as a share of the width; None without a limit.
    """

    title: str
    note: str
    bars: tuple[Bar, ...]
    limit: float | None = None


def charts(findings: Findings) -> list[Chart]:
    """The charts that there are figures for."""
    drawn = (
        _differences(findings),
        _tokens(findings),
        _int8_loss(findings),
        _sizes(findings),
        *(_latency(call, spent) for call, spent in findings.latency_ms.items()),
    )
    return [chart for chart in drawn if chart.bars]


def _differences(findings: Findings) -> Chart:
    found, title = asdict(findings), "Difference from float64"
    if not findings.outputs:  # without a checkpoint: as the gate found it at export
        found, title = findings.recorded, f"{title}, recorded at export"
    allowed = found.get("allowed") or {}
    limit = max([findings.tolerance, *allowed.values()])
    note = (
        f"largest of each output, over its largest magnitude; logarithmic; {limit:.0e} allowed, at "
        f"most {MULTIPLE} times PyTorch's float32 where that is above {findings.tolerance:.0e}"
    )
    values = dict(found.get("outputs") or {})
    limits = {name: allowed.get(name, limit) for name in values}
    for name, value in (found.get("pytorch") or {}).items():
        values[f"{name}, PyTorch"], limits[f"{name}, PyTorch"] = value, math.inf
    return _logarithmic(title, note, values, limit, limits)


def _int8_loss(findings: Findings) -> Chart:
    losses = {output: 1 - cosine for output, cosine in findings.int8.items()}
    limit = 1 - LEAST_COSINE
    note = f"1 - least cosine of a row with its float32 original; logarithmic; {limit:.2f} allowed"
    return _logarithmic(f"Loss of {findings.precision}", note, losses, limit)


def _tokens(findings: Findings) -> Chart:
    tokens = findings.tokens or findings.recorded.get("tokens") or {}
    title = "Tokens compared with PyTorch's"
    if not findings.tokens:
        title += ", recorded at export"
    if not tokens:
        return Chart(title, "", ())
    different = len(tokens["differences"])
    equal = tokens["compared"] - tokens["ties"] - different
    counts = {"equal": equal, "equal by a tie": tokens["ties"], "different": different}
    total = max(1, tokens["compared"])
    is_gate = findings.precision == "fp32"
    bars = [
        Bar(label, str(count), count / total, is_gate and label == "different" and count > 0)
        for label, count in counts.items()
    ]
    note = "hypotheses of random inputs, greedy and beams"
    return Chart(title, note if is_gate else f"{note}; a figure, not a check", tuple(bars))


def _sizes(findings: Findings) -> Chart:
    sizes = dict(findings.graph_bytes)
    original = (findings.recorded.get("int8") or {}).get("original_bytes")
    if original:
        sizes = {"all": sum(sizes.values()), "all, fp32": original, **sizes}
    return _linear("Size", "weights included", sizes, lambda size: f"{size / 1e6:.1f} MB")


def _latency(call: str, spent: Mapping[int, float]) -> Chart:
    labelled = {f"batch {batch}": milliseconds for batch, milliseconds in spent.items()}
    note = "median milliseconds in this process, on the machine of this run"
    return _linear(f"Latency: {call}", note, labelled, lambda value: f"{value:.2f} ms")


def _linear(
    title: str, note: str, values: Mapping[str, float], text: Callable[[float], str]
) -> Chart:
    longest = max(values.values(), default=0) or 1
    bars = [Bar(label, text(value), value / longest) for label, value in values.items()]
    return Chart(title, note, tuple(bars))


def _logarithmic(
    title: str,
    note: str,
    values: Mapping[str, float],
    limit: float,
    limits: Mapping[str, float] | None = None,
) -> Chart:
    """Bars from `_SMALLEST` to ten times the limit, or to the largest value.

    Args:
        limits: Of single bars, where they differ from that of the chart.
    """
    limits = limits or {}
    finite = [value for value in values.values() if math.isfinite(value)]
    largest = max([10 * limit, *finite])
    bars = [
        Bar(label, f"{value:.1e}", _share(value, largest), not value <= limits.get(label, limit))
        for label, value in sorted(
            values.items(),
            key=lambda item: (not math.isnan(item[1]), -item[1]),  # NaN first
        )
    ]
    return Chart(title, note, tuple(bars), _share(limit, largest))


def _share(value: float, largest: float) -> float:
    if not math.isfinite(value):
        return 1.0
    if value <= _SMALLEST:
        return 0.0
    return math.log(value / _SMALLEST) / math.log(largest / _SMALLEST)


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
        self.failures.append(message)


def summary(report: Report) -> Sequence[str]:
    """The report in lines for the console."""
    lines = [
        f"{report.observations} comparisons, worst difference from float64 "
        f"{report.worst_difference:.1e} of the largest value, PyTorch's "
        f"{max(report.pytorch.values(), default=0.0):.1e}"
    ]
    if report.tokens:
        lines.append(
            f"{report.tokens['compared']} hypotheses have equal tokens, "
            f"{report.tokens['ties']} of them by a tie"
        )
    if report.int8:
        lines.append(
            "{precision}: {layers} layers and {tables} tables, cosine of scores at least "
            "{least_cosine:.4f}, {mean_cosine:.5f} on average".format_map(report.int8)
        )
        if report.int8["four_bits"]:
            lines.append("{four_bits} layers have weights of 4 bits".format_map(report.int8))
        if report.int8["cache"]:
            lines.append(
                "{cache} cache: cosine at least {cache_cosine:.4f} in int8, {cache_clipped:.1e} of "
                "keys and values clipped".format_map(report.int8)
            )
        if report.int8["rows_alone"]:
            lines.append(
                "{rows_alone} rows alone equal those in their batch, bit for bit".format_map(
                    report.int8
                )
            )
        lines += _calibration_lines(report.int8)
    return [*lines, *_cuda_lines(report.cuda), *_tensorrt_lines(report.tensorrt)]


def _cuda_lines(cuda: Mapping[str, Any]) -> list[str]:
    """What is known without a card about a bundle for one."""
    if not cuda:
        return []
    nodes = ", ".join(f"{count} in {dtype}" for dtype, count in cuda["device_nodes"].items())
    lines = [
        f"every node has a CUDA kernel: {nodes}; {cuda['host_nodes']} nodes of shape arithmetic on "
        "the host; not run on a card"
    ]
    if cuda["needs_cudnn"]:
        lines.append(f"cuDNN is needed for {', '.join(cuda['needs_cudnn'])}")
    return [*lines, *_parity_lines(cuda)]


def _tensorrt_lines(tensorrt: Mapping[str, Any]) -> list[str]:
    """What is known before a plan is built."""
    if not tensorrt:
        return []
    nodes = ", ".join(f"{count} in {dtype}" for dtype, count in tensorrt["nodes"].items())
    profiles = ", ".join(f"{count} of {key}" for key, count in tensorrt["profiles"].items())
    line = (
        f"TensorRT has an operator for every node: {nodes}; profiles: {profiles}; plans are built "
        "where they are served"
    )
    return [line, *_parity_lines(tensorrt)]


def _parity_lines(found: Mapping[str, Any]) -> list[str]:
    """What a lower precision of a GPU costs."""
    parity = found.get("parity")
    if parity is None:
        return []
    line = (
        "{precision}, {how}: cosine of scores at least {least_cosine:.5f}, {mean_cosine:.6f} on "
        "average".format_map(parity)
    )
    if parity["equal_tokens"] is not None:
        line += (
            f"; {100 * parity['equal_tokens']:.1f} % of greedy tokens are PyTorch's, texts lose at "
            f"most {max(parity['score_loss'], 0):.4f} nats a token"
        )
    return [line]


def _calibration_lines(int8: Mapping[str, Any]) -> list[str]:
    """What a user's samples were used for."""
    used = int8["calibration"]
    if used is None:
        return []
    used_by = ", ".join(
        f"{key}: {count} calibrated, {used['held_out'][key]} held out and compared"
        for key, count in used["calibrated"].items()
    )
    lines = [f"{used['found']} samples of {', '.join(used['from'])} ({used_by})"]
    if used["truncated"]:
        lines.append(f"{used['truncated']} texts were cut at the model's longest input")
    if int8["same_best"] is not None:
        lines.append(f"{100 * int8['same_best']:.1f} % of the held-out labels are the same")
    return [*lines, f"random inputs: cosine at least {int8['random_cosine']:.4f}, not required"]
