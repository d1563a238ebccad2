"""The gate on a published bundle: what its files alone can show, and what a checkpoint adds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnxruntime

from export.checkpoint.checkpoint import Checkpoint
from export.parity.decoder_inputs import observe_alignment, observe_decoder
from export.parity.graph_runs import bundle_path, file_bytes, onnx_run, open_graphs
from export.parity.judge import DIFFERS, TOLERANCE
from export.parity.parity_inputs import Observation, Probe, Run, observe_stateless
from export.parity.token_parity import BEAMS, SCORE_TOLERANCE, mixed_requests
from export.parity.torch_runner import TorchRunner
from export.parity.verify import tools, verify
from export.precision import Precision
from export.quantization.int8_parity import least_cosines, required_cosine
from export.report.checksums import changed_files, interface_problem
from export.report.findings import Check, CollectingReport, Findings, Status
from export.report.latency import generator_latencies, stateless_latencies
from export.report.reference import Origin, Unrepeatable
from export.report.rows import Failure, RowsAlone
from export.targets.cuda.assignment import assign
from export.targets.cuda.gate import BOUNDS, kind_of
from export.targets.tensorrt.operators import check_operators
from export.targets.tensorrt.profiles import check_profiles
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner
from inference.processing.text import load_tokenizer

HALF_TOLERANCE = 0.02
"""Between a row alone and in a batch, of float16, relative to the largest magnitude."""
SAMPLES = ("a", "The quick brown fox.", "Grüße, 世界! 👩‍🚀", "")
_UNKNOWN_VOCABULARY = 16
"""Token ids that every table has; for bundles whose manifest has no size."""


class Verification:
    """All checks of one bundle, each run once and in order.

    Args:
        bundle: Published.
        checkpoint: Its origin; None where it is not available.
        missing: Why there is no checkpoint.
        original: The float32 bundle of the same checkpoint, for an int8 bundle without checkpoint.
        listener: Called with every finished check.
    """

    def __init__(
        self,
        bundle: Bundle,
        checkpoint: Checkpoint | None,
        *,
        missing: str = "no checkpoint",
        original: Bundle | None = None,
        listener: Callable[[Check], None] = lambda check: None,
    ) -> None:
        manifest = bundle.manifest
        self.bundle = bundle
        self.manifest = manifest
        self.checkpoint = checkpoint
        self.findings = Findings(
            name=manifest.name,
            version=bundle.version,
            architecture=manifest.architecture,
            precision=manifest.precision,
            tasks=tuple(manifest.tasks),
            source=manifest.source.model_dump(),
            checkpoint=checkpoint.location if checkpoint else None,
            tools=tools(),
        )
        self._origin = Origin(bundle, checkpoint, missing=missing, float32=original)
        self._listener = listener
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._compiled: Run | None = None  # of another runtime

    def run(self) -> Findings:
        """Every check; those that depend on a failed one are reported as not repeated."""
        self._check("files are those that were verified at export", self._files)
        self._check("graphs load with the manifest's inputs and outputs", self._graphs_load)
        if self.manifest.runtime == "tensorrt":
            self._check("TensorRT has an operator for every node", self._operators)
        elif self._is_for_cuda:
            self._check("every node has a CUDA kernel", self._kernels)
        self._check("tokenizer loads and stays inside the vocabulary", self._tokenizer)
        self._check("outputs are finite, and a row alone equals its row in a batch", self._rows)
        if self._is_generator:
            self._check("tokens of a request alone equal those in a batch", self._tokens_alone)
        self._check("the checkpoint is the one that was exported", self._same_checkpoint)
        if self._is_lowered:
            self._check(f"{self.manifest.precision} stays close to float32", self._lowered)
        else:
            self._check("outputs equal PyTorch's", self._parity)
            if self._is_generator:
                self._check("greedy and beam tokens equal PyTorch's", self._tokens)
        self._check("latency is measured", self._latency)
        return self.findings

    @property
    def _is_generator(self) -> bool:
        return "step" in self.manifest.graphs

    @property
    def _is_lowered(self) -> bool:
        return self.manifest.precision != Precision.FP32

    @property
    def _is_for_cuda(self) -> bool:
        return self.manifest.device == "cuda"

    def _check(self, title: str, check: Callable[[], str]) -> None:
        """Runs one check; whatever goes wrong in it fails it."""
        started_s = time.perf_counter()
        try:
            status, detail = Status.PASSED, check()
        except Unrepeatable as reason:
            status, detail = Status.NOT_REPEATED, str(reason)
        except Failure as failure:
            status, detail = Status.FAILED, str(failure)
        except Exception as error:  # ONNX Runtime and tokenizers raise classes of their own
            status, detail = Status.FAILED, " ".join(f"{type(error).__name__}: {error}".split())
        done = Check(title, status, detail, round(time.perf_counter() - started_s, 3))
        self.findings.checks.append(done)
        self._listener(done)

    # ------------------------------------------------------------------------ without a checkpoint

    def _files(self) -> str:
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

    def _graphs_load(self) -> str:
        if self._is_for_cuda and self.manifest.precision == Precision.BF16:
            raise Unrepeatable("the CPU has no bfloat16 kernels; the export compared the graphs")
        sessions = {}
        for key, graph in self.manifest.graphs.items():
            path = bundle_path(self.bundle, key)
            self.findings.graph_bytes[key] = file_bytes(path)
            sessions[key] = onnxruntime.InferenceSession(str(path))
            if problem := interface_problem(sessions[key], graph):
                raise Failure(f"{graph.file}: {problem}")
        self._sessions = sessions
        return f"{len(sessions)} graphs: {', '.join(sessions)}"

    def _kernels(self) -> str:
        counts = [
            sum(assign(bundle_path(self.bundle, key), key).device.values())
            for key in self.manifest.graphs
        ]
        return f"{sum(counts)} nodes, from a table: nothing was run on a card"

    def _operators(self) -> str:
        counts = []
        for key, graph in self.manifest.graphs.items():
            path = bundle_path(self.bundle, key)
            counts.append(sum(check_operators(path, key).values()))
            check_profiles(graph, self.manifest.limits, key)
        return f"{sum(counts)} nodes, from a list: no plan was built"

    def _run(self) -> Run:
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

    def _tokenizer(self) -> str:
        tokenizer = load_tokenizer(self.bundle)
        if tokenizer is None:
            raise Unrepeatable("a model without text has none")
        size = self.manifest.source_vocabulary_size or self.manifest.vocabulary_size
        highest = max(max(tokenizer.encode(text), default=0) for text in SAMPLES)
        if size is not None and highest >= size:
            raise Failure(f"token {highest} is beyond the vocabulary of {size}")
        tokenizer.decode(tokenizer.encode(SAMPLES[1]))
        return f"{len(SAMPLES)} sample texts"

    def _rows(self) -> str:
        run = self._run()
        if self.manifest.precision == Precision.INT8_FAST:
            for observation in self._observe(run):
                _refuse_not_finite(observation)
            raise Unrepeatable("int8-fast does not promise it; all outputs are finite")
        rows = RowsAlone(run, self.manifest, self._rows_tolerance)
        for observation in self._observe(rows):
            _refuse_not_finite(observation)
        if not self._is_generator and not self._is_lowered:
            rows.compare_without_padding(self._probe)
        how = (
            "bit for bit"
            if not self._rows_tolerance
            else f"within {rows.worst:.1e} of the largest value"
        )
        return f"{rows.compared} rows, {how}"

    @property
    def _rows_tolerance(self) -> float:
        """Int8 graphs of the CPU promise equal bits; float16 rounds by the shape of a batch."""
        if not self._is_lowered:
            allowed = self.findings.recorded.get("allowed") or {}
            return max([TOLERANCE, *(float(each) for each in allowed.values())])
        return HALF_TOLERANCE if self._is_for_cuda else 0.0

    def _tokens_alone(self) -> str:
        self._run()
        if self._is_for_cuda and self._is_lowered:
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
                    if one.token_ids != other.token_ids and (self._is_lowered or not is_tie):
                        raise Failure(f"tokens depend on the batch ({beams} beams)")
                    compared += 1
        runner.close()
        return f"{compared} hypotheses"

    def _latency(self) -> str:
        if self._is_for_cuda:
            raise Unrepeatable("times on the CPU say nothing about a card")
        run = self._run()
        self.findings.latency_ms = (
            generator_latencies(self.bundle)
            if self._is_generator
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

    def _observe(
        self, run: Run, manifest: Manifest | None = None, framing: Framing | None = None
    ) -> list[Observation]:
        manifest = manifest or self.manifest
        if not self._is_generator:
            return list(observe_stateless(run, manifest, self._probe_of(framing)))
        return [
            *observe_decoder(run, manifest, self._probe),
            *observe_alignment(run, manifest, self._probe),
        ]

    # --------------------------------------------------------------------------- with a checkpoint

    def _same_checkpoint(self) -> str:
        checkpoint = self._origin.require_checkpoint()
        recorded = self.manifest.source.checkpoint_hash
        if recorded is None:
            raise Unrepeatable("the manifest has no checksum of its checkpoint")
        if checkpoint.content_hash != recorded:
            raise Failure(f"{checkpoint.folder} has other files than were exported")
        return str(checkpoint.location)

    @cached_property
    def _gate(self) -> CollectingReport:
        """The gate's results, without its tokens' failures raised."""
        self._origin.require_checkpoint()
        self._run()
        report = CollectingReport()
        verify(self._origin.graphs, self.bundle, report)
        return report

    def _parity(self) -> str:
        report = self._gate
        self.findings.outputs = report.outputs
        self.findings.pytorch, self.findings.allowed = report.pytorch, report.allowed
        refused = [failure for failure in report.failures if failure.startswith(DIFFERS)]
        if refused:
            raise Failure(_first_of(refused))
        return (
            f"{report.observations} comparisons, worst difference from float64 "
            f"{report.worst_difference:.1e} of the largest value, PyTorch's "
            f"{max(report.pytorch.values()):.1e}"
        )

    def _tokens(self) -> str:
        tokens = self._gate.tokens
        self.findings.tokens = tokens
        if tokens["differences"]:
            raise Failure(
                f"{len(tokens['differences'])} of {tokens['compared']} hypotheses differ: "
                f"{tokens['differences'][0]}"
            )
        return f"{tokens['compared']} hypotheses, {tokens['ties']} of them equal by a tie"

    def _lowered(self) -> str:
        run = self._run()
        observe = partial(self._observe, framing=Framing.of(self.bundle))
        wanted, origin = self._origin.float32_outputs(observe)
        self.findings.int8 = least_cosines(wanted, observe(run))
        if self.checkpoint is not None and self._is_generator:
            self.findings.tokens = self._equal_tokens()
        least = min(self.findings.int8.values())
        place = min(self.findings.int8, key=lambda key: self.findings.int8[key])
        required, why = required_cosine(self.findings.recorded)
        if self._is_for_cuda:
            required = BOUNDS[self.manifest.precision, kind_of(self.manifest)].cosine
        if not all(value >= required for value in self.findings.int8.values()):  # NaN fails
            raise Failure(f"cosine {least:.4f} at {place}, {required:.3g} is required{why}")
        return f"cosine at least {least:.5f} ({place}), against {origin}{why}"

    def _equal_tokens(self) -> dict[str, Any]:
        """How many hypotheses have PyTorch's tokens; at lower precision a figure, not a check."""
        reference = TorchRunner(self._origin.graphs, self._origin.float32_manifest)
        runner = make_runner(self.bundle, threads=1)
        compared, differences = 0, []
        for beams in BEAMS:
            requests = mixed_requests(self.manifest, beams)
            pairs = zip(decode(reference, requests), decode(runner, requests), strict=True)
            for index, (want, got) in enumerate(pairs):
                for one, other in zip(want.hypotheses, got.hypotheses, strict=True):
                    compared += 1
                    if one.token_ids != other.token_ids:
                        differences.append(f"{beams} beams, request {index}")
        runner.close()
        return {"compared": compared, "ties": 0, "differences": differences}


def _refuse_not_finite(observation: Observation) -> None:
    if not np.isfinite(observation.value).all():
        raise Failure(f"{observation.place}: NaN or infinity")


def _first_of(messages: list[str]) -> str:
    more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return messages[0] + more
