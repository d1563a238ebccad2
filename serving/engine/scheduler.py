"""Who runs next: a queue in order of arrival, bounded by rows and prefill tokens.

Touches no tensor. The head of the queue is never overtaken by a sequence that does not share its
prefill, so nothing starves; sequences behind it that have its beam width may come along.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from serving.engine.sequence import Sequence
from serving.generation import MAX_BEAMS


@dataclass(frozen=True)
class Capacity:
    """What the engine holds at once.

    Attributes:
        rows: Live rows (sequences x beams) over all groups.
        waiting: Accepted sequences without rows: about one prefill batch. More are refused.
        prefill_tokens: Padded tokens of one prefill batch, so that running streams do not stall;
            a longer prompt is prefilled alone.
    """

    rows: int = 64
    waiting: int = 16
    prefill_tokens: int = 2048

    def __post_init__(self) -> None:
        assert self.rows >= MAX_BEAMS, "the widest request must fit"
        assert self.waiting >= 1


class Scheduler:
    """Sequences that wait for rows."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._waiting: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self._waiting.append(sequence)

    def sweep(self, now_s: float) -> None:
        """Ends waiting sequences that were cancelled or whose time is up."""
        for sequence in list(self._waiting):
            ending = sequence.ending(now_s)
            if ending is not None:
                self._waiting.remove(sequence)
                sequence.tell(ending)

    def next_batch(self, rows_in_use: int) -> list[Sequence]:
        """Takes the sequences to prefill now, all of one width; empty while the head must wait."""
        batch: list[Sequence] = []
        longest = 0
        free = self._capacity.rows - rows_in_use
        for sequence in list(self._waiting):
            if batch and sequence.width != batch[0].width:
                continue
            longest = max(longest, sequence.request.prefill_tokens)
            padded = longest * (len(batch) + 1)
            if (len(batch) + 1) * sequence.width > free:
                break
            if batch and padded > self._capacity.prefill_tokens:
                break
            batch.append(sequence)
        for sequence in batch:
            self._waiting.remove(sequence)
        return batch

    def clear(self) -> list[Sequence]:
        """Takes everything that waits."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
