"""The parity gate: exported graphs must equal PyTorch, or nothing is published.

Logits are compared at shapes other than the traced ones, ragged and with beams; tokens and scores
through the very engine that serves, batched and alone (`docs/architecture.md`, D7).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from export.architecture import Graphs
from export.probe import (
    Array,
    Feeds,
    Observation,
    Probe,
    Run,
    comparable,
    observe_alignment,
    observe_decoder,
    observe_stateless,
    output_row,
    single_row,
    stateless_feeds,
)
from export.token_parity import TokenParity, compare_tokens
from serving.bundle import Bundle
from serving.errors import SetupError

TOLERANCE = 1e-5
"""Largest difference, relative to the largest magnitude of the reference; fp32."""


class ParityError(SetupError):
    """The exported graphs do not compute what the checkpoint's network computes."""

    wire = "parity"


@dataclass
class Report:
    """Results of the gate; `report.json` of the bundle."""

    tolerance: float = TOLERANCE
    worst_difference: float = 0.0
    """Relative, over all observations of logits, states and embeddings."""
    observations: int = 0
    tokens: dict[str, Any] = field(default_factory=dict)
    graph_bytes: dict[str, int] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    int8: dict[str, Any] = field(default_factory=dict)
    """Comparison of int8 with float32 (`Int8Parity`); the parity above is of the float32 graphs."""
    warnings: list[str] = field(default_factory=list)
    """Generation defaults of the checkpoint that serving does not support."""
    tools: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `report.json`."""
        return asdict(self)


def verify(graphs: Graphs, bundle: Bundle) -> Report:
    """Compares the bundle's ONNX files against the modules that they were exported from.

    Args:
        bundle: Staged, its files in place.

    Raises:
        ParityError: names the first place that differs and by how much.
    """
    report = Report(tools={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__})
    files = {key: bundle_path(bundle, key) for key in graphs.lowerings}
    runs = torch_run(graphs), open_sessions(files)
    for want, got in zip(*(observe(graphs, bundle, run) for run in runs), strict=True):
        _compare(report, want, got)
    measure(report, graphs, bundle)
    if "step" not in graphs.lowerings:
        _compare_alone(report, graphs, bundle, runs[1])
    else:
        parity = compare_tokens(graphs, bundle)
        report.tokens = asdict(parity)
        _refuse_different_tokens(parity)
    return report


def measure(report: Report, graphs: Graphs, bundle: Bundle) -> None:
    """Records size and speed of the files as they are now."""
    files = {key: bundle_path(bundle, key) for key in graphs.lowerings}
    report.graph_bytes = {key: path.stat().st_size for key, path in files.items()}
    report.milliseconds = _timings(graphs, bundle, open_sessions(files))


def bundle_path(bundle: Bundle, key: str) -> Path:
    """Where one graph's file lies; parts are siblings of the manifest's folder."""
    manifest = bundle.manifest
    part = manifest.parts.get(key, manifest.name)
    return bundle.folder.parent / part / manifest.graphs[key].file


def torch_run(graphs: Graphs) -> Run:
    """The modules, called with arrays."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        lowering = graphs.lowerings[key]
        inputs = [torch.from_numpy(np.array(feeds[port.name])) for port in lowering.graph.inputs]
        with torch.no_grad():
            outputs = lowering.module(*inputs)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        names = [port.name for port in lowering.graph.outputs]
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return run


def open_sessions(files: Mapping[str, Path]) -> Run:
    """ONNX Runtime over the files of a bundle's graphs."""
    sessions = {key: onnxruntime.InferenceSession(str(path)) for key, path in files.items()}
    return onnx_run(sessions)


def onnx_run(sessions: dict[str, onnxruntime.InferenceSession]) -> Run:
    """The sessions, called with arrays."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        names = [output.name for output in sessions[key].get_outputs()]
        return dict(zip(names, sessions[key].run(names, feeds), strict=True))

    return run


def observe(graphs: Graphs, bundle: Bundle, run: Run) -> Iterator[Observation]:
    """Outputs for the probe's inputs, which are the same at every call."""
    probe = _probe(graphs, bundle)
    if "step" in graphs.lowerings:
        yield from observe_decoder(run, bundle.manifest, probe)
        yield from observe_alignment(run, bundle.manifest, probe)
    else:
        yield from observe_stateless(run, bundle.manifest, probe)


def _probe(graphs: Graphs, bundle: Bundle) -> Probe:
    vocabulary = bundle.manifest.vocabulary_size or graphs.source_vocabulary or 1
    return Probe(graphs.source_vocabulary or vocabulary, vocabulary)


def _compare_alone(report: Report, graphs: Graphs, bundle: Bundle, run: Run) -> None:
    """Holds every row of a stateless batch against the same row alone and without padding."""
    for key, graph in bundle.manifest.graphs.items():
        probe = _probe(graphs, bundle)
        feeds = stateless_feeds(graph, bundle.manifest, probe, 4, 6)
        together = comparable(graph, run(key, feeds), probe.source_vocabulary)
        for row in range(4):
            outputs = run(key, single_row(graph, feeds, row))
            alone = comparable(graph, outputs, probe.source_vocabulary)
            for port in graph.outputs:
                place = f"{key} row {row} alone, {port.name}"
                want = output_row(graph, feeds, port, together[port.name], row)
                _compare(report, Observation(place, want), Observation(place, alone[port.name]))


def _compare(report: Report, want: Observation, got: Observation) -> None:
    """Adds one observation to the report.

    Raises:
        ParityError: it differs by more than the tolerance.
    """
    difference = relative_difference(want.value, got.value)
    report.observations += 1
    report.worst_difference = max(report.worst_difference, difference)
    if not difference <= TOLERANCE:  # NaN must fail
        raise ParityError(
            f"ONNX differs from PyTorch at {want.place}: by {difference:.1e} of the largest value, "
            f"{TOLERANCE:.0e} is allowed; nothing was published"
        )


def relative_difference(want: Array, got: Array) -> float:
    """Largest difference over the largest magnitude of `want`; infinite for another shape."""
    if want.shape != got.shape:
        return float("inf")
    if not np.isfinite(want).all():
        return float("nan")
    return float(np.abs(want - got).max() / max(np.abs(want).max(), 1e-30))


def _refuse_different_tokens(parity: TokenParity) -> None:
    if parity.differences:
        raise ParityError(
            f"ONNX generates other tokens than PyTorch: {parity.differences[0]} "
            f"({len(parity.differences)} of {parity.compared} differ); nothing was published"
        )


def _timings(graphs: Graphs, bundle: Bundle, run: Run) -> dict[str, float]:
    """Median milliseconds of each graph's call, as the probe happens to call it."""
    spent: dict[str, list[float]] = {key: [] for key in graphs.lowerings}

    def timed(key: str, feeds: Feeds) -> dict[str, Array]:
        started_s = time.perf_counter()
        outputs = run(key, feeds)
        spent[key].append(1000 * (time.perf_counter() - started_s))
        return outputs

    _exhaust(observe(graphs, bundle, timed))
    return {key: round(float(np.median(times)), 3) for key, times in spent.items()}


def _exhaust(observations: Iterable[Observation]) -> None:
    for _ in observations:
        pass


def summary(report: Report) -> Sequence[str]:
    """The report in lines for the console."""
    lines = [
        f"{report.observations} comparisons, worst difference "
        f"{report.worst_difference:.1e} of the largest value"
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
    return lines
