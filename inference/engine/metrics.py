"""Counters and gauges of one engine."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.running_batch import StepCounts


@dataclass
class EngineMetrics:
    """Written by the engine's thread, read by any; each field is one number, so no lock.

    Attributes:
        steps: Turns of the loop: the heartbeat.
        step_seconds: Time spent in them.
        admitted: Sequences whose prefill has begun.
        row_steps: Tokens decoded over all rows, without prefill.
        draft_tokens: Tokens that prompt lookup found and a step verified.
        accepted_tokens: Those of them that were right.
        prefill_tokens: Tokens of sources, images and prompts prefilled, padding included.
        prefix_hits: Prompts with a prefix in the prefix cache.
        prefix_tokens: Prompt tokens taken from the prefix cache.
        slots: Rows that may live at once.
        rows_in_use: Live rows now, those of prompts in prefill included.
        waiting: Accepted sequences without rows now.
        state_bytes: Bytes of blocks, and of buffers of batches with sequences, now.
        state_limit_bytes: Their limit.
        spare_bytes: Bytes of released buffers, and of batches without sequences, kept for reuse.
        bytes_per_slot: `state_bytes` per live row; 0 when idle.
        prefix_bytes: Bytes of the prefix cache now.
        put_back: Sequences that lost their memory to older ones and were prefilled again.
        failures: Groups and prompts that failed with an exception.
    """

    steps: int = 0
    step_seconds: float = 0.0
    admitted: int = 0
    row_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
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
    put_back: int = 0
    failures: int = 0

    def count(self, done: StepCounts) -> None:
        """Adds what a call did."""
        self.row_steps += done.tokens
        self.draft_tokens += done.drafted
        self.accepted_tokens += done.accepted
        self.prefill_tokens += done.prefilled
