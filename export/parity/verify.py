"""The parity gate: exported graphs must equal the checkpoint's network, or nothing is published.

Outputs are held against the modules in float64 (`export/parity/judge.py`), at shapes other than the
traced ones, ragged and with beams; tokens and scores through the very engine that serves, batched
and alone (`docs/architecture.md`, D7, D90).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import torch

from export.architecture import Graphs
from export.parity.choices import Choices
from export.parity.graph_runs import (
    OpenGraphs,
    TimedRun,
    bundle_path,
    file_bytes,
    open_graphs,
    torch_run,
)
from export.parity.judge import SEEDS, TOLERANCE, Distance, in_float64, worse
from export.parity.parity_inputs import (
    Array,
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
from export.parity.token_parity import TokenParity, compare_tokens
from export.precision import Precision
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Role
from inference.errors import SetupError
from inference.process_limits import return_memory

_GRAPHS = {"prefill": "step", "chunk": "step"}
"""Beginning of a place → the graph that was called."""


class ParityError(SetupError):
    """The exported graphs do not compute what the checkpoint's network computes."""

    wire = "parity"


@dataclass
class Report:
    """Results of the gate; `report.json` of the bundle."""

    tolerance: float = TOLERANCE
    worst_difference: float = 0.0
    """From float64, relative, over all observations of logits, states and embeddings."""
    observations: int = 0
    outputs: dict[str, float] = field(default_factory=dict)
    """Graph and output → its worst relative difference from float64."""
    pytorch: dict[str, float] = field(default_factory=dict)
    """The same of PyTorch's float32."""
    allowed: dict[str, float] = field(default_factory=dict)
    """Graph and output → the difference that is allowed (`export/parity/judge.py`)."""
    tokens: dict[str, Any] = field(default_factory=dict)
    graph_bytes: dict[str, int] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    int8: dict[str, Any] = field(default_factory=dict)
    """Comparison of int8 with float32 (`Int8Parity`); the parity above is of the float32 graphs."""
    cuda: dict[str, Any] = field(default_factory=dict)
    """Nodes of a CUDA bundle on each device, and its precision's costs (`export/targets/cuda`)."""
    tensorrt: dict[str, Any] = field(default_factory=dict)
    """Nodes and profiles of a bundle for TensorRT, and what its precision costs."""
    warnings: list[str] = field(default_factory=list)
    """Generation defaults of the checkpoint that serving does not support."""
    runtime_choice: dict[str, Any] = field(default_factory=dict)
    """Runtimes, instances and threads that were measured, where the export was to choose."""
    files: dict[str, str] = field(default_factory=dict)
    """`<model>/<file>` → SHA-256 of what was published."""
    tools: dict[str, str] = field(default_factory=dict)

    def fail(self, message: str) -> None:
        """Ends the gate.

        Raises:
            ParityError: always; a report that collects failures returns instead.
        """
        raise ParityError(f"{message}; nothing was published")

    def as_json(self) -> dict[str, Any]:
        """The fields, for `report.json`."""
        return asdict(self)


def verify(graphs: Graphs, bundle: Bundle, report: Report | None = None) -> Report:
    """Compares the bundle's ONNX files against the modules that they were exported from.

    Args:
        bundle: Staged or published, its files in place.
        report: Where results are added; a new one if left out.

    Raises:
        ParityError: names the first place that differs and by how much.
    """
    report = report or Report()
    report.tools = tools()
    run, timed = open_graphs(bundle, Precision.FP32), TimedRun()
    _compare_outputs(report, graphs, bundle, run, timed)
    _record_files(report, graphs, bundle)
    report.milliseconds = timed.milliseconds
    if "step" in graphs.lowerings:
        run.close()  # the engine opens sessions of its own
        # the files are float32, whatever they will be published in
        manifest = bundle.manifest.model_copy(update={"precision": Precision.FP32.value})
        parity = compare_tokens(graphs, Bundle(bundle.folder, manifest))
        report.tokens = asdict(parity)
        _refuse_different_tokens(report, parity)
    return report


def tools() -> dict[str, str]:
    """Versions of the libraries that compute both sides."""
    return {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}


def measure(report: Report, graphs: Graphs, bundle: Bundle, run: Run) -> None:
    """Records size and speed of the files as they are now.

    Args:
        run: Sessions over these files.
    """
    timed = TimedRun()
    deque(observe(graphs, bundle, timed.of(run)), maxlen=0)
    _record_files(report, graphs, bundle)
    report.milliseconds = timed.milliseconds


def _record_files(report: Report, graphs: Graphs, bundle: Bundle) -> None:
    files = {key: bundle_path(bundle, key) for key in graphs.lowerings}
    report.graph_bytes = {key: file_bytes(path) for key, path in files.items()}


def observe(
    graphs: Graphs, bundle: Bundle, run: Run, framing: Framing | None = None, seed: int = 0
) -> Iterator[Observation]:
    """Outputs for the probe's inputs, which are the same at every call.

    Args:
        framing: Completes random texts as the tokenizer does.
        seed: Of the inputs.
    """
    probe = _probe(graphs, bundle, framing, seed)
    if "step" in graphs.lowerings:
        admit = graphs.lowerings.get("admit")
        traced = admit.traced_sizes.get("S") if admit else None  # three of the encoder's blocks
        yield from observe_decoder(run, bundle.manifest, probe, traced and traced // 2)
        yield from observe_alignment(run, bundle.manifest, probe)
    else:
        yield from observe_stateless(run, bundle.manifest, probe)


def _probe(graphs: Graphs, bundle: Bundle, framing: Framing | None = None, seed: int = 0) -> Probe:
    vocabulary = bundle.manifest.vocabulary_size or graphs.source_vocabulary or 1
    size = graphs.source_vocabulary or vocabulary
    return Probe(size, vocabulary, seed, framing=framing, images=bundle.manifest.text_images)


def _compare_outputs(
    report: Report, graphs: Graphs, bundle: Bundle, run: OpenGraphs, timed: TimedRun
) -> None:
    """Judges every output by its distance from float64, at worst over all observations.

    PyTorch is done before a graph is opened: what each needs for a call is not held together.
    Where graphs choose places, PyTorch comes second, since it is given their choices.

    Args:
        timed: Calls of the graphs are added to it.
    """
    exact, choices = torch_run(in_float64(graphs)), Choices(bundle.manifest)
    observed = observe(graphs, bundle, choices.record(timed.of(run)))
    if choices.are_made:
        observed = iter(list(observed))
        run.close()
    runs = (choices.replay(each) for each in (exact, torch_run(graphs)))
    sides = (observe(graphs, bundle, each) for each in runs)
    expected = [
        (want, relative_difference(want.value, rounded.value))
        for want, rounded in zip(*sides, strict=True)
    ]
    return_memory()
    found: dict[str, Distance] = {}
    for (want, rounding), got in zip(expected, observed, strict=True):
        distance = found.setdefault(output_of(want.place), Distance())
        distance.add(want.place, relative_difference(want.value, got.value), rounding)
        report.observations += 1
    if "step" not in graphs.lowerings:
        for want, got, largest in _rows_alone(graphs, bundle, exact, run):
            difference = relative_difference(want.value, got.value, largest)
            found[output_of(want.place)].add(want.place, difference, 0.0)
            report.observations += 1
    if any(distance.is_doubtful for distance in found.values()):
        for place, difference in _more_of_pytorch(graphs, bundle, exact):
            found[output_of(place)].add(place, 0.0, difference)
    for output, distance in found.items():
        report.worst_difference = worse(report.worst_difference, distance.onnx)
        report.outputs[output], report.pytorch[output] = distance.onnx, distance.torch
        report.allowed[output] = distance.allowed
        if not distance.is_allowed:
            report.fail(distance.refusal())


def _more_of_pytorch(graphs: Graphs, bundle: Bundle, exact: Run) -> Iterator[tuple[str, float]]:
    """Places, and PyTorch's distance from float64, for further inputs.

    The largest of few rounding errors is an accident; of more inputs it is less of one.
    """
    for seed in SEEDS:
        choices = Choices(bundle.manifest)
        runs = choices.record(exact), choices.replay(torch_run(graphs))
        sides = (observe(graphs, bundle, each, seed=seed) for each in runs)
        for want, rounded in zip(*sides, strict=True):
            yield want.place, relative_difference(want.value, rounded.value)


def _rows_alone(
    graphs: Graphs, bundle: Bundle, exact: Run, run: Run
) -> Iterator[tuple[Observation, Observation, float]]:
    """Rows of a stateless batch in float64, the same rows alone and without padding, and the
    largest magnitude of the batch: a row may be a single logit near zero.
    """
    for key, graph in bundle.manifest.graphs.items():
        probe = _probe(graphs, bundle)
        feeds = stateless_feeds(graph, bundle.manifest, probe, 4, 6)
        found = [run(key, single_row(graph, feeds, row)) for row in range(4)]
        chosen = [Choices(bundle.manifest).of(key, outputs) for outputs in found]
        given = {name: np.concatenate([each[name] for each in chosen]) for name in chosen[0]}
        together = comparable(graph, exact(key, {**feeds, **given}), probe.source_vocabulary)
        for row, outputs in enumerate(found):
            alone = comparable(graph, outputs, probe.source_vocabulary)
            for port in graph.outputs:
                if port.role is Role.CHOSEN:
                    continue
                place = f"{key} row {row} alone, {port.name}"
                want = output_row(graph, feeds, port, together[port.name], row)
                largest = float(np.abs(together[port.name]).max())
                yield Observation(place, want), Observation(place, alone[port.name]), largest


def output_of(place: str) -> str:
    """Graph and output of a place: `step logits` for `prefill B=3 S=9 T=4 W=2`."""
    graph, *_, last = place.split()
    is_output = "=" not in last and not last.isdigit()
    return f"{_GRAPHS.get(graph, graph)} {last if is_output else 'logits'}"


def relative_difference(want: Array, got: Array, largest: float | None = None) -> float:
    """Largest difference over the largest magnitude, by default of `want`; infinite for another
    shape.
    """
    if want.shape != got.shape:
        return float("inf")
    if not np.isfinite(want).all():
        return float("nan")
    largest = float(np.abs(want).max()) if largest is None else largest
    return float(np.abs(want - got).max()) / max(largest, 1e-30)


def _refuse_different_tokens(report: Report, parity: TokenParity) -> None:
    if parity.differences:
        report.fail(
            f"ONNX generates other tokens than PyTorch: {parity.differences[0]} "
            f"({len(parity.differences)} of {parity.compared} differ)"
        )
