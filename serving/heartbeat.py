"""An engine's published statistics: its heartbeat, its load, its memory.

The backend writes them to Triton's metrics endpoint; `triptych triton` and the gateway read them
there. The heartbeat is a counter that is incremented while the engine's thread is idle or has taken
a step since the last increment: it stops when the thread hangs, and when the process is stopped or
dead. An encoder's session counts each run as a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "triptych_engine_"
BEATS = "beats"
COUNTERS = {
    BEATS: "Heartbeats: times at which the engine was idle or had progressed.",
    "steps": "Iterations of the decode loop, or runs of an encoder.",
    "step_seconds": "Time spent in them.",
    "admitted": "Sequences whose prefill is done.",
    "row_steps": "Tokens decoded over all rows.",
    "prefill_tokens": "Tokens of sources, images and prompts prefilled, padding included.",
    "prefix_hits": "Prompts with a prefix in the prefix cache.",
    "prefix_tokens": "Tokens taken from the prefix cache.",
    "failures": "Batches and prompts that failed with an exception.",
}
GAUGES = {
    "slots": "Limit of concurrent rows.",
    "rows_in_use": "Rows in use.",
    "waiting": "Accepted sequences that wait for rows.",
    "state_bytes": "Bytes of all caches.",
    "state_limit_bytes": "Limit of state_bytes.",
    "spare_bytes": "Bytes of released cache buffers kept for reuse; 0 after some idle seconds.",
    "bytes_per_slot": "Average bytes of a row in use; 0 when idle.",
    "prefix_bytes": "Bytes of the prefix cache.",
}
"""Descriptions by field of `serving.engine.metrics.Metrics`; the heartbeat is the backend's."""

_SAMPLE = re.compile(rf"{PREFIX}(?P<figure>\w+)\{{(?P<labels>[^}}]*)\}} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class EngineStats:
    """The last published statistics of one engine."""

    incarnation: int
    figures: dict[str, float]

    @property
    def beats(self) -> float:
        """The heartbeat counter."""
        return self.figures.get(BEATS, 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether sequences run or wait in it."""
        return bool(self.figures.get("rows_in_use") or self.figures.get("waiting"))


def labels(model: str, version: str, incarnation: str) -> dict[str, str]:
    """Labels of one engine's series; those of a dead incarnation stay until the server ends."""
    return {"model": model, "version": version, "incarnation": incarnation}


def read_engine_stats(exposition: str) -> dict[str, EngineStats]:
    """Statistics of each model's newest incarnation, from Prometheus' text format."""
    newest: dict[str, EngineStats] = {}
    for found in _SAMPLE.finditer(exposition):
        label = dict(_LABEL.findall(found["labels"]))
        model, incarnation = label["model"], int(label["incarnation"])
        if model not in newest or incarnation > newest[model].incarnation:
            newest[model] = EngineStats(incarnation, {})
        if incarnation == newest[model].incarnation:
            figure = found["figure"]
            before = newest[model].figures.get(figure, 0.0)
            newest[model].figures[figure] = max(before, float(found["value"]))
    return newest
