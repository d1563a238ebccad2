"""A bundle's graphs rewritten for a lower precision, where that changes little (`int8_parity`).

The float32 graphs have passed `verify`, so they are the reference. Batch invariance is checked bit
for bit. A cache that int8 cannot hold stays float32.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from export.architecture import Graphs
from export.parity.graph_runs import LazySessions, bundle_path, file_bytes, open_graphs
from export.parity.parity_inputs import Array, Feeds, Observation, Run
from export.parity.token_parity import BEAMS, mixed_requests
from export.parity.verify import ParityError, Report, measure, observe
from export.precision import Precision
from export.quantization.calibrate import CalibrationRun, Scales, cache_scales, calibration_runs
from export.quantization.calibration_set import CalibrationSet
from export.quantization.int8_parity import (
    LEAST_COSINE,
    Int8Parity,
    RecordedCalls,
    check_products,
    compare,
    compared_outputs,
    least_cosine,
    pairs_of,
    row_cosines,
    share,
)
from export.quantization.quantize import LARGEST, Quantised, quantize
from export.quantization.quantize_cache import has_fused_cache, quantize_cache
from export.quantization.quantize_static import quantize_static, random_samples
from export.quantization.quantize_weights import quantize_weights
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner

_HELD_OUT = 1
"""Seed of calibration runs that no scale was taken from."""


def lower_precision(
    report: Report,
    graphs: Graphs,
    bundle: Bundle,
    precision: Precision,
    samples: CalibrationSet | None = None,
) -> Manifest:
    """Rewrites the files of a staged bundle and compares them with the originals.

    Args:
        report: Of the float32 files, which equal PyTorch; updated in place.
        samples: The user's; scales are taken from them and the graphs are compared on those that
            were held out. The loss on random inputs is then a figure of the report.

    Returns:
        The manifest that fits the rewritten files.

    Raises:
        ParityError: logits differ too much, or a row depends on its neighbours.
    """
    files = {key: bundle_path(bundle, key) for key in graphs.lowerings}
    parity = Int8Parity(precision, original_bytes=sum(map(file_bytes, files.values())))
    original = open_graphs(bundle, Precision.FP32)
    framing = Framing.of(bundle)
    wanted = list(observe(graphs, bundle, original, framing))
    held_out = list(samples.observed(original, bundle)) if samples else []
    is_openvino = bundle.manifest.runtime == "openvino"
    has_cache = not is_openvino and has_fused_cache(files.get("step"))  # OpenVINO has its own
    scales = cache_scales(bundle.manifest, original) if has_cache else {}
    original.close()
    for key, file in files.items():
        done = _rewrite(bundle, key, file, precision, samples)
        parity.layers += done.layers
        parity.tables += done.tables
        parity.four_bits += done.four_bits
    if scales:
        manifest = _lower_cache(parity, graphs, bundle, files, scales, wanted)
        bundle = replace(bundle, manifest=manifest)
    sessions = open_graphs(bundle, precision)
    run: Run = sessions
    if precision.is_batch_invariant:
        run = BatchInvarianceCheck(sessions, bundle, parity)
    recorded = RecordedCalls(run)
    given = list(observe(graphs, bundle, recorded, framing))
    if samples is None:
        compare(parity, wanted, given, _remedy(bundle.manifest, precision))
    else:
        parity.random_cosine = float(least_cosine(wanted, given)[0])
        parity.calibration = samples.as_json()
        compare(parity, held_out, list(samples.observed(sessions, bundle)))
    measure(report, graphs, bundle, sessions)
    sessions.close()
    if not is_openvino:
        _refuse_inexact_products(parity, files, recorded)
    if precision.is_batch_invariant and "step" in files:
        _refuse_dependent_tokens(parity, bundle)
    report.int8 = asdict(parity)
    return bundle.manifest


def _rewrite(
    bundle: Bundle, key: str, file: Path, precision: Precision, samples: CalibrationSet | None
) -> Quantised:
    """Rewrites one file for the runtime that will serve it; bf16 is a setting of the runtime."""
    if precision is Precision.BF16:
        return Quantised(layers=0, tables=0, kept_bytes=file_bytes(file))
    if bundle.manifest.runtime == "openvino":
        if "step" in bundle.manifest.graphs:
            return quantize_weights(key, file, precision)
        given = samples.calibration[key] if samples else random_samples(bundle, key)
        return quantize_static(file, given)
    return quantize(file, precision)


def _lower_cache(
    parity: Int8Parity,
    graphs: Graphs,
    bundle: Bundle,
    files: Mapping[str, Path],
    scales: Scales,
    originals: Sequence[Observation],
) -> Manifest:
    """Makes the cache int8; undoes it where logits then differ too much.

    They are those of held-out runs, and those that the gate will compare with the `originals`.
    """
    step, manifest = files["step"], bundle.manifest
    with tempfile.TemporaryDirectory(dir=step.parent.parent) as folder:
        changed = [files[key] for key in ("step", "admit") if key in files]
        before = [_copy_graph(graph, Path(folder)) for graph in changed]
        run = LazySessions(files)
        wanted = calibration_runs(manifest, run, _HELD_OUT)
        run.close()
        lowered = quantize_cache(step, manifest, scales)
        run = LazySessions(files)
        given = calibration_runs(lowered, run, _HELD_OUT, follow=wanted)
        observed = observe(graphs, replace(bundle, manifest=lowered), run)
        gate = float(np.min([row_cosines(*pair).min() for pair in pairs_of(originals, observed)]))
        run.close()
        cosines = [
            row_cosines(want, got).min()
            for one, other in zip(wanted, given, strict=True)
            for want, got in zip(one.logits, other.logits, strict=True)
        ]
        parity.cache_cosine = float(np.min(cosines))  # NaN if any is
        parity.cache_clipped = _clipped_share(given)
        if not gate >= LEAST_COSINE:  # NaN must fail
            parity.cache_cosine = float(np.minimum(parity.cache_cosine, gate))
        if parity.cache_cosine >= LEAST_COSINE:  # NaN must fail
            parity.cache = "int8"
            return lowered
        parity.cache = "float32"
        for graph in before:
            _copy_graph(graph, step.parent)
        return manifest


def _copy_graph(graph: Path, folder: Path) -> Path:
    """A graph's file and its weights, copied to a folder."""
    for file in (graph, graph.with_name(f"{graph.name}.data")):
        (folder / file.name).unlink(missing_ok=True)
        if file.is_file():
            shutil.copy(file, folder)
    return folder / graph.name


def _clipped_share(found: list[CalibrationRun]) -> float:
    """Share of an int8 cache's cells at the end of the scale."""
    cells = [np.abs(c.astype(np.int16)) for run in found for c in run.caches.values()]
    return sum(int((c >= LARGEST).sum()) for c in cells) / sum(c.size for c in cells)


class BatchInvarianceCheck:
    """A `Run` that repeats every call one sequence at a time and raises on any difference."""

    def __init__(self, run: Run, bundle: Bundle, parity: Int8Parity) -> None:
        self._run = run
        self._graphs = bundle.manifest.graphs
        self._parity = parity

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """The outputs of the whole batch.

        Raises:
            ParityError: a sequence alone gives other bits.
        """
        together = self._run(key, feeds)
        compared = compared_outputs(self._graphs[key])
        count = min(len(value) for value in feeds.values() if value.ndim)
        for index in range(count if count > 1 else 0):
            alone = self._run(key, {n: share(v, index, count) for n, v in feeds.items()})
            for name in compared:
                if not np.array_equal(alone[name], share(together[name], index, count)):
                    raise ParityError(
                        f"{key}: {name} of row {index} depends on its neighbours; "
                        "nothing was published"
                    )
            self._parity.rows_alone += 1
        return together


def _refuse_inexact_products(
    parity: Int8Parity, files: Mapping[str, Path], recorded: RecordedCalls
) -> None:
    """Compares each product with the integers that the format defines.

    Raises:
        ParityError: the processor or the runtime computes another product.
    """
    found = check_products(files, recorded.calls)
    parity.products, parity.product_error = found.products, found.worst
    if not found.is_exact:
        raise ParityError(f"{found.refusal()}; nothing was published")


def _refuse_dependent_tokens(parity: Int8Parity, bundle: Bundle) -> None:
    """Decodes sources of mixed lengths together and each alone, through the serving engine.

    Raises:
        ParityError: a request alone gives other tokens.
    """
    runner = make_runner(bundle)  # as it is served
    for beams in BEAMS:
        requests = mixed_requests(bundle.manifest, beams)
        for request, together in zip(requests, decode(runner, requests), strict=True):
            (alone,) = decode(runner, [request])
            pairs = zip(together.hypotheses, alone.hypotheses, strict=True)
            if any(a.token_ids != b.token_ids for a, b in pairs):
                raise ParityError(
                    f"{parity.precision} tokens depend on the batch ({beams} beams); "
                    "nothing was published"
                )
            parity.hypotheses_alone += len(alone.hypotheses)
    runner.close()


def _remedy(manifest: Manifest, precision: Precision) -> str:
    """What to do where a precision does not suit a checkpoint.

    It may be due to scales that were fixed on random inputs.
    """
    if precision is Precision.INT4:
        return "; --precision int8 changes less"
    has_fixed_scales = manifest.runtime == "openvino" and "step" not in manifest.graphs
    if not has_fixed_scales or precision is not Precision.INT8:
        return ""
    samples = "IMAGES" if manifest.image else "TEXTS.txt"
    source = manifest.source.location or manifest.source.name
    command = f"triptych export {source} --name {manifest.name}"
    return (
        "; the scales were taken from random inputs, take them from samples of your own: "
        f"{command} --runtime openvino --precision int8 --calibration {samples}"
    )
