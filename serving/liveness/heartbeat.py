"""Engine metrics: how a model's processes report that they run and how full they are.

Each process of a model writes its figures to Triton's metrics endpoint, labelled with its pid;
`triptych triton` and the gateway read them there. `beats` counts the moments at which the process
was idle or had made progress since the moment before. It stops when the process hangs, is stopped
or is gone, and goes on under any load.
"""

from __future__ import annotations

PREFIX = "triptych_engine_"
BEATS = "beats"
COUNTERS = {
    BEATS: "Moments at which the process was idle or had made progress.",
    "steps": "Decode steps, or runs of a stateless model's session.",
    "step_seconds": "Seconds spent in them.",
    "admitted": "Sequences whose prompt was prefilled.",
    "row_steps": "Tokens decoded over all rows.",
    "draft_tokens": "Tokens that prompt lookup proposed and a step verified.",
    "accepted_tokens": "Proposed tokens that were right.",
    "prefill_tokens": "Source, image and prompt tokens prefilled, padding included.",
    "prefix_hits": "Prompts that began with a cached prefix.",
    "prefix_tokens": "Prompt tokens taken from the prefix cache.",
    "put_back": "Sequences that ran out of memory and were prefilled again.",
    "failures": "Batches and prompts that failed with an exception.",
}
GAUGES = {
    "slots": "Limit of live rows.",
    "rows_in_use": "Live rows: sequences x beams, or requests of the current run.",
    "waiting": "Accepted sequences without rows.",
    "state_bytes": "Bytes of all caches and states.",
    "state_limit_bytes": "Limit of these bytes.",
    "spare_bytes": "Bytes of free arenas kept for reuse; 0 after some idle seconds.",
    "bytes_per_slot": "Bytes per live row on average; 0 when idle.",
    "prefix_bytes": "Bytes of the prefix cache.",
}
"""Both by their names in `inference.engine.metrics.Metrics`, except `beats`."""


def labels(model: str, version: str, incarnation: str, pid: int) -> dict[str, str]:
    """Labels of one process's series.

    They are unique among the living: Triton lets two equal series share one metric, frees it with
    the first of them, and crashes when the second writes. The series of a process that was killed
    stay until the server ends.
    """
    return {"model": model, "version": version, "incarnation": incarnation, "process": str(pid)}
