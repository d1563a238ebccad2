"""Whether a device has the memory that an engine promises to its requests."""

from __future__ import annotations

from inference.bundle.manifest import Manifest
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.engine.state.memory_model import BufferShape
from inference.errors import BundleError

_MEBIBYTE = 1 << 20


def check_memory(runner: Runner, manifest: Manifest, capacity: Capacity) -> None:
    """Refuses a capacity that the free memory of the runner's device cannot hold.

    Where the model states no limit of length, the bound on all states is what may be needed.

    Raises:
        BundleError: says how many rows would fit.
    """
    free = runner.free_bytes
    if free is None:
        return
    needed = _needed(runner, manifest, capacity, capacity.rows)
    if needed <= free:
        return
    fitting = [
        rows
        for rows in range(1, capacity.rows)
        if _needed(runner, manifest, capacity, rows) <= free
    ]
    what = f"max_rows {fitting[-1]} would fit" if fitting else "not even one row fits"
    raise BundleError(
        f"{manifest.name} may need {needed // _MEBIBYTE} MiB for {capacity.rows} rows, its device "
        f"has {free // _MEBIBYTE} MiB free: {what}; less state_memory or prefix_memory needs less"
    )


def _needed(runner: Runner, manifest: Manifest, capacity: Capacity, rows: int) -> int:
    """Bytes of the states of so many rows at their longest, of the prefix cache, of scores."""
    limits = manifest.limits
    scores = 2 * 4 * rows * runner.vocabulary_size
    prefixes = capacity.prefix_bytes if runner.shares_prefixes else 0
    states = capacity.state_bytes
    if limits.max_total_tokens is not None:
        source = limits.max_input_tokens or 0
        extent = BufferShape.holding(rows, limits.max_total_tokens, source)
        states = min(states, runner.footprint.bytes(1, extent))
    return states + prefixes + scores
