"""What int8 costs and what it keeps: a bundle's float32 graphs against their rewrite.

The float32 graphs have passed `verify`, so they stand for PyTorch here. Scores may move, within
`LEAST_COSINE`; that a row's scores do not depend on its neighbours is held bit for bit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from export.architecture import Graphs
from export.probe import Array, Feeds, Observation, Run
from export.quantize import Precision, quantize
from export.token_parity import BEAMS, mixed_requests
from export.verify import ParityError, Report, bundle_path, measure, observe, open_sessions
from serving.bundle import Bundle, Graph, Role
from serving.engine.decoder import decode
from serving.engine.ort_runner import OrtRunner

LEAST_COSINE = 0.98
"""Between the scores or embeddings of one row; less means a layer that int8 cannot carry."""


@dataclass
class Int8Parity:
    """How a rewritten bundle compares with its float32 original.

    Attributes:
        least_cosine: Of one row's scores, states or embeddings, over all observations.
        mean_cosine: Over all rows.
        same_best: Share of rows that score the same token highest; None for stateless bundles.
        rows_alone: Rows whose results were bit for bit those of the row alone.
        hypotheses_alone: Generated texts whose tokens were those of the request alone.
        original_bytes: Of the float32 files.
    """

    precision: str
    layers: int = 0
    tables: int = 0
    least_cosine: float = 1.0
    mean_cosine: float = 1.0
    same_best: float | None = None
    rows_alone: int = 0
    hypotheses_alone: int = 0
    original_bytes: int = 0


def lower_precision(report: Report, graphs: Graphs, bundle: Bundle, precision: Precision) -> None:
    """Rewrites the files of a staged bundle and compares them with what they were.

    Args:
        report: Of the float32 files, all alike PyTorch; what changes is written into it.

    Raises:
        ParityError: scores turned too far, or a row depends on its neighbours.
    """
    files = {key: bundle_path(bundle, key) for key in graphs.lowerings}
    parity = Int8Parity(precision, original_bytes=sum(f.stat().st_size for f in files.values()))
    wanted = list(observe(graphs, bundle, open_sessions(files)))
    for file in files.values():
        done = quantize(file, precision)
        parity.layers += done.layers
        parity.tables += done.tables
    run = open_sessions(files)
    if precision.is_batch_invariant:
        run = RowByRow(run, bundle, parity)
    _compare(parity, wanted, list(observe(graphs, bundle, run)))
    if precision.is_batch_invariant and "step" in files:
        _refuse_dependent_tokens(parity, graphs, bundle)
    report.int8 = asdict(parity)
    measure(report, graphs, bundle)


class RowByRow:
    """A `Run` that repeats every call one sequence at a time and refuses any difference."""

    def __init__(self, run: Run, bundle: Bundle, parity: Int8Parity) -> None:
        self._run = run
        self._graphs = bundle.manifest.graphs
        self._parity = parity

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """The outputs of the whole batch.

        Raises:
            ParityError: a sequence alone gets other bits.
        """
        together = self._run(key, feeds)
        judged = _judged(self._graphs[key])
        count = min(len(value) for value in feeds.values() if value.ndim)
        for index in range(count if count > 1 else 0):
            alone = self._run(key, {n: _share(v, index, count) for n, v in feeds.items()})
            for name in judged:
                if not np.array_equal(alone[name], _share(together[name], index, count)):
                    raise ParityError(
                        f"{key}: {name} of row {index} depends on its neighbours; "
                        "nothing was published"
                    )
            self._parity.rows_alone += 1
        return together


def _refuse_dependent_tokens(parity: Int8Parity, graphs: Graphs, bundle: Bundle) -> None:
    """Decodes sources of mixed lengths together and each alone, through the serving engine.

    Raises:
        ParityError: the same request gets other tokens.
    """
    runner = OrtRunner(bundle, threads=1)
    for beams in BEAMS:
        asked = mixed_requests(graphs, bundle.manifest, beams)
        for request, together in zip(asked, decode(runner, asked), strict=True):
            (alone,) = decode(runner, [request])
            pairs = zip(together.hypotheses, alone.hypotheses, strict=True)
            if any(a.token_ids != b.token_ids for a, b in pairs):
                raise ParityError(
                    f"{parity.precision} tokens depend on the batch ({beams} beams); "
                    "nothing was published"
                )
            parity.hypotheses_alone += len(alone.hypotheses)
    runner.close()


def _judged(graph: Graph) -> list[str]:
    """Outputs without the caches, whose cells beyond a row's length mean nothing."""
    kept = {port.name for port in graph.inputs if port.role is Role.STATE}
    return [p.name for p in graph.outputs if p.role is not Role.STATE or not kept]


def _share(value: Array, index: int, count: int) -> Array:
    """What belongs to one of `count` sequences; scalars belong to all."""
    if not value.ndim:
        return value
    each = len(value) // count
    return value[index * each : (index + 1) * each]


def _compare(parity: Int8Parity, wanted: list[Observation], given: list[Observation]) -> None:
    cosines, same = [], []
    for want, got in zip(wanted, given, strict=True):
        a, b = (value.value.reshape(-1, value.value.shape[-1]) for value in (want, got))
        cosines.append(cosine(a.astype(np.float64), b.astype(np.float64)))
        worst = float(cosines[-1].min())
        if not worst >= LEAST_COSINE:  # NaN must fail
            raise ParityError(
                f"{parity.precision} turns {want.place} too far: cosine {worst:.4f}, "
                f"{LEAST_COSINE} is demanded; nothing was published"
            )
        if want.place.startswith(("step", "prefill", "chunk")):
            same.append(a.argmax(axis=-1) == b.argmax(axis=-1))
    every = np.concatenate(cosines)
    parity.least_cosine, parity.mean_cosine = float(every.min()), float(every.mean())
    parity.same_best = float(np.concatenate(same).mean()) if same else None


def cosine(a: Array, b: Array) -> Array:
    """Of each pair of rows; of two rows of zeros it is 1."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.where(lengths > 0, (a * b).sum(axis=-1) / np.maximum(lengths, 1e-300), 1.0)
