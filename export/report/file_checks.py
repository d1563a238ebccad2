"""Checks of a published bundle by its files alone.

Each returns what was compared, in words; it raises `Failure`, or `Unrepeatable` where this bundle
cannot be checked so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from export.parity.graph_runs import bundle_path, file_bytes, onnx_run, open_graphs
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import (
    Observation,
    Probe,
    Run,
    observe_alignment,
    observe_decoder,
    observe_stateless,
)
from export.parity.token_parity import BEAMS, SCORE_TOLERANCE, mixed_requests
from export.precision import Precision
from export.quantization.int8_parity import RecordedCalls, check_products
from export.report.findings import Findings
from export.report.latency import generator_latencies, stateless_latencies
from export.report.reference import Unrepeatable
from export.report.rows import Failure, RowsAlone
from export.targets.cuda.assignment import assign
from export.targets.cuda.signature import type_name
from export.targets.instance_config import open_graph
from export.targets.tensorrt.checks import check_operators
from export.targets.tensorrt.lowering import check_profiles
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Graph, Manifest
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runner_factory import bundle_validator, make_runner
from inference.errors import BundleError, InvalidRequest
from inference.generation import Finished
from inference.load_check import LoadCheck
from inference.process_limits import processor_kind, processor_name
from inference.processing.tokenizer_kinds import load_tokenizer
from inference.saturation import open_cpu_session


def checksums(bundle: Bundle) -> dict[str, str]:
    """`<model>/<file>` → SHA-256 of its graphs, their weights and its tokenizer files."""
    return {name: _sha256(path) for name, path in bundle_files(bundle)}


def changed_files(bundle: Bundle, recorded: Mapping[str, str]) -> list[str]:
    """Names of the files that are not what was recorded, added and missing ones included."""
    found = checksums(bundle)
    return sorted(
        name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)
    )


def bundle_files(bundle: Bundle) -> Iterator[tuple[str, Path]]:
    """`<model>/<file>` and path of its graphs, their weights and its tokenizer files."""
    manifest = bundle.manifest
    for key, graph in manifest.graphs.items():
        path = bundle_path(bundle, key)
        for file in (path, path.with_name(f"{graph.file}.data")):
            if file.is_file():
                yield f"{manifest.parts.get(key, manifest.name)}/{file.name}", file
    for name in manifest.tokenizer.files.values() if manifest.tokenizer else ():
        yield f"{manifest.name}/{name}", bundle.path(name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def interface_problem(session: Any, graph: Graph) -> str | None:
    """How a file's inputs and outputs differ from the manifest's; None where they are equal."""
    for kind, found, declared in (
        ("inputs", session.get_inputs(), graph.inputs),
        ("outputs", session.get_outputs(), graph.outputs),
    ):
        have = [(port.name, type_name(port.type), list(port.shape)) for port in found]
        want = [(port.name, port.dtype, list(port.shape)) for port in declared]
        if have != want:
            one = next((pair for pair in zip(have, want, strict=False) if pair[0] != pair[1]), None)
            return f"its {kind} are not the manifest's: {one or (len(have), len(want))}"
    return None


HALF_TOLERANCE = 0.02
"""Between a row alone and in a batch, of float16, relative to the largest magnitude."""
SAMPLES = ("a", "The quick brown fox.", "Grüße, 世界! 👩‍🚀", "")
_UNKNOWN_VOCABULARY = 16
"""Token ids that every table has; for bundles whose manifest has no size."""


class FileChecks:
    """The bundle's graphs as they are served, and what they show.

    Args:
        findings: To which checksums, sizes and times are added.
    """

    def __init__(self, bundle: Bundle, findings: Findings) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.findings = findings
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._compiled: Run | None = None  # of another runtime

    @property
    def is_generator(self) -> bool:
        """Whether the engine decodes with it."""
        return "step" in self.manifest.graphs

    @property
    def is_lowered(self) -> bool:
        """Whether it computes in a lower precision than float32."""
        return self.manifest.precision != Precision.FP32

    @property
    def is_for_cuda(self) -> bool:
        """Whether it is served on a card."""
        return self.manifest.device == "cuda"

    def checksums(self) -> str:
        """Checksums of all files, against those that the report recorded."""
        self._read_report()
        recorded = self.findings.recorded.get("files")
        if not recorded:
            raise Unrepeatable("this bundle was exported before checksums were recorded")
        if changed := changed_files(self.bundle, recorded):
            raise Failure(f"changed since the export: {', '.join(changed)}")
        return f"{len(recorded)} files have their recorded checksums"

    def _read_report(self) -> None:
        path = self.bundle.path(self.manifest.report)
        try:
            recorded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Failure(f"cannot read {path.name}: {error}") from error
        self.findings.recorded = recorded if isinstance(recorded, dict) else {}

    def graphs_load(self) -> str:
        """Interfaces of the graphs, against the manifest's."""
        if self.is_for_cuda and self.manifest.precision == Precision.BF16:
            raise Unrepeatable("the CPU has no bfloat16 kernels; the export compared the graphs")
        sessions = {}
        for key, graph in self.manifest.graphs.items():
            path = bundle_path(self.bundle, key)
            self.findings.graph_bytes[key] = file_bytes(path)
            sessions[key] = open_cpu_session(path, onnxruntime.SessionOptions())
            if problem := interface_problem(sessions[key], graph):
                raise Failure(f"{graph.file}: {problem}")
        self._sessions = sessions
        return f"{len(sessions)} graphs: {', '.join(sessions)}"

    def loads_as_exported(self) -> str:
        """Each model computes here what it did at export, as when it is loaded to be served."""
        bundle, computed = self.bundle, 0
        keys = {model: key for key, model in self.manifest.parts.items()}
        for model in bundle.models:
            folder = bundle.folder.parents[1] / model / bundle.folder.name
            try:
                with LoadCheck(folder, f"{model} version {bundle.version}") as check:
                    computed += check.has_outputs
                    if check.has_outputs and self.is_generator:
                        assert self.manifest.generation is not None
                        check.compare_tokens(self._generate, self.manifest.generation)
                    elif check.has_outputs:
                        names = [p.name for p in self.manifest.graphs[keys[model]].outputs]
                        check.compare_outputs(open_graph(bundle, keys[model]).run, names)
            except BundleError as error:
                raise Failure(error.message) from error
        if not computed:
            raise Unrepeatable("this bundle records no inputs and outputs: export it again")
        return f"{computed} models, on {processor_name()} with {processor_kind()}"

    def _generate(self, request: EngineRequest) -> Finished:
        runner = make_runner(self.bundle)
        try:
            return decode(runner, [bundle_validator(self.bundle).validate(request)])[0]
        finally:
            runner.close()

    def kernels(self) -> str:
        """Every node has a CUDA kernel."""
        counts = [
            sum(assign(bundle_path(self.bundle, key), key).device.values())
            for key in self.manifest.graphs
        ]
        return f"{sum(counts)} nodes, from a table: nothing was run on a card"

    def operators(self) -> str:
        """Every node has an operator of TensorRT."""
        counts = []
        for key, graph in self.manifest.graphs.items():
            path = bundle_path(self.bundle, key)
            counts.append(sum(check_operators(path, key).values()))
            check_profiles(graph, self.manifest.limits, key)
        return f"{sum(counts)} nodes, from a list: no plan was built"

    def run(self) -> Run:
        """The published graphs, in the runtime that serves them; TensorRT's in ONNX Runtime.

        Raises:
            Unrepeatable: they do not load.
        """
        if not self._sessions:
            raise Unrepeatable("the graphs do not load")
        if self.manifest.runtime != "openvino":
            return onnx_run(self._sessions)
        self._compiled = self._compiled or open_graphs(self.bundle)
        return self._compiled

    def tokenizer(self) -> str:
        """Sample texts become tokens of the vocabulary, and text again."""
        tokenizer = load_tokenizer(self.bundle)
        if tokenizer is None:
            raise Unrepeatable("a model without text has none")
        try:
            for text in SAMPLES:
                tokenizer.encode(text)
        except InvalidRequest as error:  # a token without an embedding
            raise Failure(error.message) from None
        tokenizer.decode(tokenizer.encode(SAMPLES[1]))
        return f"{len(SAMPLES)} sample texts"

    def rows(self) -> str:
        """Outputs are finite, and a row alone has the outputs that it has in a batch."""
        run = self.run()
        if self.manifest.precision == Precision.INT8_FAST:
            for observation in self.observe(run):
                _refuse_not_finite(observation)
            raise Unrepeatable("int8-fast does not promise it; all outputs are finite")
        rows = RowsAlone(run, self.manifest, self._rows_tolerance)
        for observation in self.observe(rows):
            _refuse_not_finite(observation)
        if not self.is_generator and not self.is_lowered:
            rows.compare_without_padding(self._probe)
        how = (
            "bit for bit"
            if not self._rows_tolerance
            else f"within {rows.worst:.1e} of the largest value"
        )
        return f"{rows.compared} rows, {how}"

    @property
    def multiplies_bytes(self) -> bool:
        """Whether its products of bytes are operators of the graph."""
        is_int8 = self.manifest.precision in (Precision.INT8, Precision.INT8_FAST)
        return is_int8 and self.manifest.runtime == "onnxruntime"

    def products(self) -> str:
        """Products of bytes are exact on this processor."""
        recorded = RecordedCalls(self.run())
        self.observe(recorded)
        files = {key: bundle_path(self.bundle, key) for key in recorded.calls}
        found = check_products(files, recorded.calls)
        if not found.is_exact:
            raise Failure(found.refusal())
        return f"{found.products} products, within {found.worst:.1e} of the largest value"

    @property
    def _rows_tolerance(self) -> float:
        """Int8 graphs of the CPU promise equal bits; float16 rounds by the shape of a batch."""
        if not self.is_lowered:
            allowed = self.findings.recorded.get("allowed") or {}
            return max([TOLERANCE, *(float(each) for each in allowed.values())])
        return HALF_TOLERANCE if self.is_for_cuda else 0.0

    def tokens_alone(self) -> str:
        """A request alone has the tokens that it has in a batch."""
        self.run()
        if self.is_for_cuda and self.is_lowered:
            raise Unrepeatable(f"{self.manifest.precision} for CUDA does not promise it")
        if self.manifest.precision == Precision.INT8_FAST:
            raise Unrepeatable("int8-fast does not promise it")
        runner = make_runner(self.bundle, threads=1)
        compared = 0
        for beams in BEAMS:
            requests = mixed_requests(self.manifest, beams)
            for request, together in zip(requests, decode(runner, requests), strict=True):
                (alone,) = decode(runner, [request])
                for one, other in zip(together.hypotheses, alone.hypotheses, strict=True):
                    is_tie = abs(one.score - other.score) <= SCORE_TOLERANCE
                    if one.token_ids != other.token_ids and (self.is_lowered or not is_tie):
                        raise Failure(f"tokens depend on the batch ({beams} beams)")
                    compared += 1
        runner.close()
        return f"{compared} hypotheses"

    def latency(self) -> str:
        """Times of calls, which the findings hold."""
        if self.is_for_cuda:
            raise Unrepeatable("times on the CPU say nothing about a card")
        run = self.run()
        self.findings.latency_ms = (
            generator_latencies(self.bundle)
            if self.is_generator
            else stateless_latencies(run, self.manifest, self._probe)
        )
        return ", ".join(self.findings.latency_ms)

    @property
    def _probe(self) -> Probe:
        """The same inputs at every call."""
        return self._probe_of(None)

    def _probe_of(self, framing: Framing | None) -> Probe:
        vocabulary = self.manifest.vocabulary_size or self.manifest.source_vocabulary_size
        vocabulary = vocabulary or _UNKNOWN_VOCABULARY
        drawn = self.manifest.source_vocabulary_size or vocabulary
        return Probe(drawn, vocabulary, framing=framing)

    def observe(
        self, run: Run, manifest: Manifest | None = None, framing: Framing | None = None
    ) -> list[Observation]:
        """Outputs of every graph for the probe's inputs."""
        manifest = manifest or self.manifest
        if not self.is_generator:
            return list(observe_stateless(run, manifest, self._probe_of(framing)))
        return [
            *observe_decoder(run, manifest, self._probe),
            *observe_alignment(run, manifest, self._probe),
        ]


def _refuse_not_finite(observation: Observation) -> None:
    if not np.isfinite(observation.value).all():
        raise Failure(f"{observation.place}: NaN or infinity")
