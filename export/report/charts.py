"""Bar charts as numbers: labels, texts and lengths, which the page's template draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from export.parity.judge import MULTIPLE
from export.quantization.int8_parity import LEAST_COSINE
from export.report.findings import Findings

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


def widest(charts: Sequence[Chart]) -> int:
    """Characters of the longest label, for the labels' column."""
    return max((len(bar.label) for chart in charts for bar in chart.bars), default=0)
