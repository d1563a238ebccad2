"""Int8 graphs of a bundle against the float32 graphs that they were rewritten from.

The float32 graphs have passed `verify`, so they are the reference. Logits may differ within
`LEAST_COSINE`; batch invariance is checked bit for bit. A cache that int8 cannot hold stays
float32.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from export.architecture import Graphs
from export.parity.parity_inputs import Array, Feeds, Observation, Run
from export.parity.token_parity import BEAMS, mixed_requests
from export.parity.verify import (
    LazySessions,
    ParityError,
    Report,
    bundle_path,
    file_bytes,
    measure,
    observe,
    open_graphs,
    output_of,
)
from export.precision import Precision
from export.quantization.calibrate import CalibrationRun, Scales, cache_scales, calibration_runs
from export.quantization.calibration_set import CalibrationSet
from export.quantization.quantize import LARGEST, Quantised, quantize
from export.quantization.quantize_cache import quantize_cache
from export.quantization.quantize_static import quantize_static, random_samples
from export.quantization.quantize_weights import quantize_weights
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Graph, Manifest, Role
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner

LEAST_COSINE = 0.98
"""Between the logits or embeddings of one row; less means a layer that int8 cannot represent."""
_HELD_OUT = 1
"""Seed of calibration runs that no scale was taken from."""


@dataclass
class Int8Parity:
    """How a rewritten bundle compares with its float32 original.

    Attributes:
        four_bits: Of the layers, those with weights of 4 bits.
        least_cosine: Of one row's logits, states or embeddings, over all observations: of random
            inputs, or of the user's samples that no scale was taken from.
        mean_cosine: Over all rows.
        same_best: Share of rows whose most likely token, or class of a user's sample, is the same;
            None where nothing is chosen.
        random_cosine: `least_cosine` of random inputs, where the user gave samples.
        calibration: The user's samples: names, how many, and how many were held out.
        rows_alone: Rows whose results equal, bit for bit, those of the row alone.
        hypotheses_alone: Hypotheses whose tokens equal those of the request alone.
        original_bytes: Of the float32 files.
        cache: dtype of the self-attention cache, int8 or float32; None without a cache.
        cache_cosine: Least cosine between logits with an int8 cache and without, on held-out runs.
        cache_clipped: Share of those runs' keys and values that the int8 scales clipped.
    """

    precision: str
    layers: int = 0
    tables: int = 0
    four_bits: int = 0
    least_cosine: float = 1.0
    mean_cosine: float = 1.0
    same_best: float | None = None
    random_cosine: float | None = None
    calibration: dict[str, Any] | None = None
    rows_alone: int = 0
    hypotheses_alone: int = 0
    original_bytes: int = 0
    cache: str | None = None
    cache_cosine: float | None = None
    cache_clipped: float | None = None


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
    scales = {} if is_openvino else cache_scales(bundle.manifest, original)  # it has its own
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
    given = list(observe(graphs, bundle, run, framing))
    if samples is None:
        _compare(parity, wanted, given, _remedy(bundle.manifest, precision))
    else:
        parity.random_cosine = float(least_cosine(wanted, given)[0])
        parity.calibration = samples.as_json()
        _compare(parity, held_out, list(samples.observed(sessions, bundle)))
    measure(report, graphs, bundle, sessions)
    sessions.close()
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
        before = [_copied(graph, Path(folder)) for graph in changed]
        run = LazySessions(files)
        wanted = calibration_runs(manifest, run, _HELD_OUT)
        run.close()
        lowered = quantize_cache(step, manifest, scales)
        run = LazySessions(files)
        given = calibration_runs(lowered, run, _HELD_OUT, follow=wanted)
        observed = observe(graphs, replace(bundle, manifest=lowered), run)
        gate = float(np.min([row_cosines(*pair).min() for pair in _pairs(originals, observed)]))
        run.close()
        cosines = [
            row_cosines(want, got).min()
            for one, other in zip(wanted, given, strict=True)
            for want, got in zip(one.logits, other.logits, strict=True)
        ]
        parity.cache_cosine = float(np.min(cosines))  # NaN if any is
        parity.cache_clipped = _clipped(given)
        if not gate >= LEAST_COSINE:  # NaN must fail
            parity.cache_cosine = float(np.minimum(parity.cache_cosine, gate))
        if parity.cache_cosine >= LEAST_COSINE:  # NaN must fail
            parity.cache = "int8"
            return lowered
        parity.cache = "float32"
        for graph in before:
            _copied(graph, step.parent)
        return manifest


def _copied(graph: Path, folder: Path) -> Path:
    """A graph's file and its weights, copied to a folder."""
    for file in (graph, graph.with_name(f"{graph.name}.data")):
        (folder / file.name).unlink(missing_ok=True)
        if file.is_file():
            shutil.copy(file, folder)
    return folder / graph.name


def _clipped(found: list[CalibrationRun]) -> float:
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


def compared_outputs(graph: Graph) -> list[str]:
    """Outputs without the caches, whose cells beyond a row's length are undefined."""
    kept = {port.name for port in graph.inputs if port.role is Role.STATE}
    return [p.name for p in graph.outputs if p.role is not Role.STATE or not kept]


def share(value: Array, index: int, count: int) -> Array:
    """The rows of one of `count` sequences; scalars belong to all."""
    if not value.ndim:
        return value
    each = len(value) // count
    return value[index * each : (index + 1) * each]


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


def _compare(
    parity: Int8Parity,
    wanted: list[Observation],
    given: list[Observation],
    remedy: str = "",
) -> None:
    """Adds cosines to the report.

    Args:
        remedy: Ends the error.

    Raises:
        ParityError: one is below `LEAST_COSINE`.
    """
    worst, place = least_cosine(wanted, given)
    if not worst >= LEAST_COSINE:  # NaN must fail
        raise ParityError(
            f"{parity.precision} changes {place} too much: cosine {worst:.4f}, "
            f"{LEAST_COSINE} is required; nothing was published{remedy}"
        )
    pairs = list(_pairs(joined(wanted), joined(given)))
    cosines = np.concatenate([row_cosines(a, b) for a, b in pairs])
    parity.least_cosine, parity.mean_cosine = float(cosines.min()), float(cosines.mean())
    is_sampled = parity.calibration is not None
    same = [
        a.argmax(axis=-1) == b.argmax(axis=-1)
        for want, (a, b) in zip(wanted, _pairs(wanted, given), strict=True)
        if want.place.startswith(("step", "prefill", "chunk"))
        or (is_sampled and want.place.endswith(" logits") and a.shape[-1] > 1)
    ]
    parity.same_best = float(np.concatenate(same).mean()) if same else None


def least_cosine(wanted: list[Observation], given: list[Observation]) -> tuple[float, str]:
    """The least cosine of two rows, and where it is; NaN if any is NaN."""
    wanted, given = joined(wanted), joined(given)
    found = [float(row_cosines(a, b).min()) for a, b in _pairs(wanted, given)]
    index = int(np.argmin(found))  # the first NaN, if there is one
    return found[index], wanted[index].place


def joined(observations: Sequence[Observation]) -> list[Observation]:
    """Outputs of one number a text (its relevance) as one row: a single number has no angle."""
    kept: list[Observation] = []
    numbers: dict[str, list[Array]] = {}
    for observation in observations:
        if observation.value.shape[-1] > 1:
            kept.append(observation)
        else:
            name = output_of(observation.place)
            numbers.setdefault(name, []).append(observation.value.reshape(-1))
    return kept + [Observation(name, np.concatenate(each)) for name, each in numbers.items()]


def _pairs(
    wanted: Sequence[Observation], given: Iterable[Observation]
) -> Iterator[tuple[Array, Array]]:
    """Both values of each observation, (rows, last dimension)."""
    for want, got in zip(wanted, given, strict=True):
        yield (
            want.value.reshape(-1, want.value.shape[-1]),
            got.value.reshape(-1, got.value.shape[-1]),
        )


def row_cosines(a: Array, b: Array) -> Array:
    """`cosine` in float64."""
    return cosine(a.astype(np.float64), b.astype(np.float64))


def cosine(a: Array, b: Array) -> Array:
    """Of each pair of rows; 1 where one is of zeros, NaN where one has a NaN."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.where(lengths == 0, 1.0, (a * b).sum(axis=-1) / np.maximum(lengths, 1e-300))
