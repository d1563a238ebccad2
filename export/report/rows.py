"""Batch invariance of published graphs: every row again, alone."""

from __future__ import annotations

from collections.abc import Mapping

from export.parity.choices import judged_outputs
from export.parity.judge import worse
from export.parity.parity_inputs import (
    Array,
    Feeds,
    Probe,
    Run,
    output_row,
    single_row,
    stateless_feeds,
)
from export.parity.verify import relative_difference
from export.quantization.int8_parity import compared_outputs, share
from inference.bundle.manifest import Manifest


class Failure(Exception):
    """A check found what it must not find."""


class RowsAlone:
    """A `Run` that repeats every call one sequence at a time.

    Args:
        tolerance: Largest relative difference; 0 for equal bits.
    """

    def __init__(self, run: Run, manifest: Manifest, tolerance: float) -> None:
        self._run = run
        self._manifest = manifest
        self._tolerance = tolerance
        self.compared = 0
        self.worst = 0.0

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """The outputs of the whole batch.

        Raises:
            Failure: a sequence alone gives another result.
        """
        together = self._run(key, feeds)
        names = compared_outputs(self._manifest.graphs[key])
        count = min(len(value) for value in feeds.values() if value.ndim)
        for index in range(count if count > 1 else 0):
            alone = self._run(key, {n: share(v, index, count) for n, v in feeds.items()})
            want = {name: share(together[name], index, count) for name in names}
            self._compare(key, f"row {index}", want, alone)
        return together

    def compare_without_padding(self, probe: Probe) -> None:
        """Rows of a ragged batch against the same rows without padding.

        Raises:
            Failure: padding changes a result.
        """
        for key, graph in self._manifest.graphs.items():
            feeds = stateless_feeds(graph, self._manifest, probe, 4, 6)
            together = self._run(key, feeds)
            for row in range(4):
                alone = self._run(key, single_row(graph, feeds, row))
                want = {p.name: output_row(graph, feeds, p, together[p.name], row)
                        for p in graph.outputs}  # fmt: skip
                self._compare(key, f"row {row} without padding", want, alone)

    def _compare(self, key: str, place: str, want: Feeds, alone: Mapping[str, Array]) -> None:
        for name in judged_outputs(self._manifest.graphs[key], want, alone):
            difference = relative_difference(want[name], alone[name])
            self.worst = worse(self.worst, difference)
            if not difference <= self._tolerance:  # NaN must fail
                raise Failure(
                    f"{key} {place}: {name} alone differs by {difference:.1e} from the batch"
                )
        self.compared += 1
