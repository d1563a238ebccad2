"""Counters that say whether the engine is alive and how full it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineMetrics:
    """Written by the engine's thread, read by any; each field is one number, so no lock.

    Attributes:
        steps: Turns of the loop that ran the model: the heartbeat.
        step_seconds: Time spent in them.
        admitted: Sequences whose prompt has been read.
        row_steps: Tokens decoded over all rows, prefill apart.
        prefill_tokens: Tokens of sources, pictures and prompts read, padding included.
        prefix_hits: Prompts whose beginning had been read before.
        prefix_tokens: Tokens that were therefore not read again.
        slots: Rows that may live at once.
        rows_in_use: Live rows now, those of prompts that are being read included.
        waiting: Accepted sequences without rows now.
        state_bytes: Bytes of all arenas now.
        state_limit_bytes: What they may hold.
        spare_bytes: Bytes of arenas that were left, kept to be used again.
        bytes_per_slot: Of these, what one live row takes on average; 0 when idle.
        prefix_bytes: Bytes of stored prefixes now.
        failures: Groups and prompts that were lost to an exception.
    """

    steps: int = 0
    step_seconds: float = 0.0
    admitted: int = 0
    row_steps: int = 0
    prefill_tokens: int = 0
    prefix_hits: int = 0
    prefix_tokens: int = 0
    slots: int = 0
    rows_in_use: int = 0
    waiting: int = 0
    state_bytes: int = 0
    state_limit_bytes: int = 0
    spare_bytes: int = 0
    bytes_per_slot: int = 0
    prefix_bytes: int = 0
    failures: int = 0
