"""The parity gate: exported graphs must equal the checkpoint's network, or nothing is published.

Outputs are held against the modules in float64 (`export/parity/judge.py`), at shapes other than the
traced ones, ragged and with beams; tokens and scores through the very engine that serves, batched
and alone (`docs/architecture.md`, D7, D90, D118).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from export.architecture import Graphs
from export.checkpoint.memory import return_memory
from export.parity.choices import Choices
from export.parity.compiled_run import CompiledRun
from export.parity.decoder_inputs import observe_alignment, observe_decoder
from export.parity.float64 import in_float64
from export.parity.judge import SEEDS, TOLERANCE, Distance, worse
from export.parity.paged_run import PagedRun
from export.parity.parity_inputs import (
    Array,
    Feeds,
    Observation,
    Probe,
    Run,
    comparable,
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

RESIDENT_BYTES = 512 << 20
"""Files of graphs that verification keeps loaded at once."""


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
        """For `report.json`."""
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


class TimedRun:
    """The time of each call of a `Run`, as the probe happens to call it."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = {}

    def of(self, run: Run) -> Run:
        """The same calls, timed."""

        def timed(key: str, feeds: Feeds) -> dict[str, Array]:
            started_s = time.perf_counter()
            outputs = run(key, feeds)
            self._spent.setdefault(key, []).append(1000 * (time.perf_counter() - started_s))
            return outputs

        return timed

    @property
    def milliseconds(self) -> dict[str, float]:
        """Median of each graph's calls; one that loads its graph takes longer."""
        return {key: round(float(np.median(times)), 3) for key, times in self._spent.items()}


def bundle_path(bundle: Bundle, key: str) -> Path:
    """Path of one graph's file, in a staged bundle (`<model>/`) or a published one.

    A published bundle has a version folder below each of its Triton models.
    """
    manifest = bundle.manifest
    part, file = manifest.parts.get(key, manifest.name), manifest.graphs[key].file
    if bundle.folder.parent.name == manifest.name:
        return bundle.folder.parents[1] / part / bundle.folder.name / file
    return bundle.folder.parent / part / file


def file_bytes(path: Path) -> int:
    """Size of a graph, weights that lie beside it included."""
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.is_file() else 0)


def torch_run(graphs: Graphs) -> Run:
    """The modules, called with arrays; a choice of places may be one of them (`Choices`)."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        lowering = graphs.lowerings[key]
        names = [port.name for port in lowering.graph.inputs]
        if (chosen := lowering.graph.output(Role.CHOSEN)) and chosen.name in feeds:
            names.append(chosen.name)
        inputs = [torch.from_numpy(np.array(feeds[name])) for name in names]
        with torch.no_grad():
            outputs = lowering.module(*inputs)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        names = [port.name for port in lowering.graph.outputs]
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return run


class LazySessions:
    """ONNX Runtime over a bundle's graphs, as a `Run`.

    A graph is loaded at its first call. Where the files together exceed `RESIDENT_BYTES`, the
    least recently called graphs are unloaded: a large model's graphs need not be in memory at once.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._open: dict[str, onnxruntime.InferenceSession] = {}  # in the order of their last calls

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph."""
        session = self._open.pop(key, None)
        if session is None:
            self._make_room(file_bytes(self._files[key]))
            session = onnxruntime.InferenceSession(str(self._files[key]), _without_arena())
        self._open[key] = session
        return onnx_run(self._open)(key, feeds)

    def close(self) -> None:
        """Unloads all graphs; the next call loads its own again."""
        self._open.clear()
        return_memory()

    def _make_room(self, needed: int) -> None:
        held = {key: file_bytes(self._files[key]) for key in self._open}
        for key in list(self._open):
            if sum(held.values()) + needed <= RESIDENT_BYTES:
                return
            del self._open[key], held[key]
            return_memory()


def _without_arena() -> onnxruntime.SessionOptions:
    """Options by which memory of a call is freed when it ends; numbers do not depend on it."""
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    return options


OpenGraphs = LazySessions | CompiledRun | PagedRun
"""A `Run` that holds what it has loaded until it is closed."""


def open_graphs(bundle: Bundle, precision: Precision | None = None) -> OpenGraphs:
    """A bundle's graphs in the runtime that will serve them; TensorRT's in ONNX Runtime.

    Args:
        precision: That of the files as they are now; by default the manifest's.
    """
    manifest = bundle.manifest
    files = {key: bundle_path(bundle, key) for key in manifest.graphs}
    if manifest.runtime != "openvino":
        return LazySessions(files)
    if "step" in files:
        return PagedRun(bundle, precision or Precision(manifest.precision))
    return CompiledRun(manifest, files, precision or Precision(manifest.precision))


def onnx_run(sessions: dict[str, onnxruntime.InferenceSession]) -> Run:
    """The sessions, called with arrays."""

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        names = [output.name for output in sessions[key].get_outputs()]
        return dict(zip(names, sessions[key].run(names, feeds), strict=True))

    return run


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
        yield from observe_decoder(run, bundle.manifest, probe)
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
