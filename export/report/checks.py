"""The gate on a published bundle: what its files alone can show, and what a checkpoint adds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from export.checkpoint.checkpoint import Checkpoint
from export.parity.judge import DIFFERS
from export.parity.token_parity import BEAMS, mixed_requests
from export.parity.torch_runner import TorchRunner
from export.parity.verify import tools, verify
from export.quantization.int8_parity import least_cosines, required_cosine
from export.report.file_checks import FileChecks
from export.report.findings import Check, CollectingReport, Findings, Status
from export.report.reference import Origin, Unrepeatable
from export.report.rows import Failure
from export.targets.cuda.gate import BOUNDS, kind_of
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner


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
        self._files = FileChecks(bundle, self.findings)
        self._listener = listener

    def run(self) -> Findings:
        """Every check; those that depend on a failed one are reported as not repeated."""
        files = self._files
        self._check("files are those that were verified at export", files.checksums)
        self.check_loaded()
        self._check("graphs load with the manifest's inputs and outputs", files.graphs_load)
        if self.manifest.runtime == "tensorrt":
            self._check("TensorRT has an operator for every node", files.operators)
        elif files.is_for_cuda:
            self._check("every node has a CUDA kernel", files.kernels)
        self._check("tokenizer loads and stays inside the vocabulary", files.tokenizer)
        self._check("outputs are finite, and a row alone equals its row in a batch", files.rows)
        if files.multiplies_bytes:
            self._check("products of bytes are exact on this processor", files.products)
        if files.is_generator:
            self._check("tokens of a request alone equal those in a batch", files.tokens_alone)
        self._check("the checkpoint is the one that was exported", self._same_checkpoint)
        if files.is_lowered:
            self._check(f"{self.manifest.precision} stays close to float32", self._lower)
        else:
            self._check("outputs equal PyTorch's", self._parity)
            if files.is_generator:
                self._check("greedy and beam tokens equal PyTorch's", self._tokens)
        self._check("latency is measured", files.latency)
        return self.findings

    def check_loaded(self) -> Findings:
        """The one check that a model passes whenever it is loaded."""
        self._check("models compute what they did at export", self._files.loads_as_exported)
        return self.findings

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
        self._files.run()
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

    def _lower(self) -> str:
        run = self._files.run()
        observe = partial(self._files.observe, framing=Framing.of(self.bundle))
        wanted, origin = self._origin.float32_outputs(observe)
        self.findings.int8 = least_cosines(wanted, observe(run))
        if self.checkpoint is not None and self._files.is_generator:
            self.findings.tokens = self._equal_tokens()
        least = min(self.findings.int8.values())
        place = min(self.findings.int8, key=lambda key: self.findings.int8[key])
        required, why = required_cosine(self.findings.recorded)
        if self._files.is_for_cuda:
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


def _first_of(messages: list[str]) -> str:
    more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return messages[0] + more
