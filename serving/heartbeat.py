"""The heartbeat of an engine: the numbers by which others see that it lives and how full it is.

The backend writes them to Triton's metrics endpoint; `triptych triton` and the gateway read them
there. The beat itself counts moments at which the engine's thread slept for want of work or had
taken a step since the moment before: it stands still when the thread hangs, and when the process is
stopped or gone. An encoder's session does the same between its runs, of which each is a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "triptych_engine_"
BEATS = "beats"
COUNTERS = {
    BEATS: "Moments at which the engine was idle or had gone on.",
    "steps": "Turns of the decode loop, or runs of an encoder.",
    "step_seconds": "Time spent in them.",
    "admitted": "Sequences whose prompt has been read.",
    "row_steps": "Tokens decoded over all rows.",
    "prefill_tokens": "Tokens of sources, pictures and prompts read, padding included.",
    "prefix_hits": "Prompts whose beginning had been read before.",
    "prefix_tokens": "Tokens that were therefore not read again.",
    "failures": "Groups and prompts that were lost to an exception.",
}
GAUGES = {
    "slots": "Rows that may live at once.",
    "rows_in_use": "Rows that live.",
    "waiting": "Accepted sequences without rows.",
    "state_bytes": "Bytes of all states.",
    "state_limit_bytes": "Bytes that they may take.",
    "spare_bytes": "Bytes of left arenas, kept to be used again; 0 after some idle seconds.",
    "bytes_per_slot": "Bytes that a live row takes on average; 0 when idle.",
    "prefix_bytes": "Bytes of stored prefixes.",
}
"""Both by their names in `serving.engine.metrics.Metrics`, the beat apart."""

_SAMPLE = re.compile(rf"{PREFIX}(?P<figure>\w+)\{{(?P<labels>[^}}]*)\}} (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Vitals:
    """What one engine last said of itself."""

    incarnation: int
    figures: dict[str, float]

    @property
    def beats(self) -> float:
        """The beat's count."""
        return self.figures.get(BEATS, 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether sequences live or wait in it."""
        return bool(self.figures.get("rows_in_use") or self.figures.get("waiting"))


def labels(model: str, version: str, incarnation: str) -> dict[str, str]:
    """Labels of one engine's series; a dead incarnation's stay until the server ends."""
    return {"model": model, "version": version, "incarnation": incarnation}


def read_vitals(exposition: str) -> dict[str, Vitals]:
    """The vitals of each model's newest incarnation, in Prometheus' text format."""
    newest: dict[str, Vitals] = {}
    for found in _SAMPLE.finditer(exposition):
        label = dict(_LABEL.findall(found["labels"]))
        model, incarnation = label["model"], int(label["incarnation"])
        if model not in newest or incarnation > newest[model].incarnation:
            newest[model] = Vitals(incarnation, {})
        if incarnation == newest[model].incarnation:
            figure = found["figure"]
            before = newest[model].figures.get(figure, 0.0)
            newest[model].figures[figure] = max(before, float(found["value"]))
    return newest
