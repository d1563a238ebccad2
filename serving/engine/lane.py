"""The live sequences of one beam width, in step with the runner's slots."""

from __future__ import annotations

import numpy as np

from serving.engine.runner import Candidates, Group
from serving.engine.sequence import Align, Sequence


class Lane:
    """Slot i of the group holds `sequences[i]`; every change is made to both."""

    def __init__(self, group: Group, align: Align) -> None:
        self.group = group
        self._align = align
        self.sequences: list[Sequence] = []

    @property
    def rows(self) -> int:
        """Rows in use."""
        return len(self.sequences) * self.group.width

    def sweep(self, now_s: float) -> None:
        """Ends sequences that were cancelled or whose time is up."""
        for slot in reversed(range(len(self.sequences))):
            ending = self.sequences[slot].ending(now_s)
            if ending is not None:
                self.sequences[slot].tell(ending)
                self._retire(slot)

    def admit(self, batch: list[Sequence]) -> None:
        """Prefills new sequences and takes their first step."""
        first = len(self.sequences)
        asks = [sequence.asks[0] for sequence in batch]
        candidates = self.group.admit([sequence.request.prompt for sequence in batch], asks)
        self.sequences += batch
        self._advance(candidates, first, rows_each=1)

    def step(self) -> None:
        """Takes every sequence one token further."""
        token_ids = np.array([s.next_ids for s in self.sequences], np.int64).reshape(-1)
        asks = [ask for sequence in self.sequences for ask in sequence.asks]
        self._advance(self.group.step(token_ids, asks), 0, rows_each=self.group.width)

    def _advance(self, candidates: Candidates, first: int, rows_each: int) -> None:
        """Lets the searches choose, then moves state: beams first, then holes."""
        sources: list[int] = []
        targets: list[int] = []
        ended: list[int] = []
        for slot in range(first, len(self.sequences)):
            advance = self.sequences[slot].advance(
                candidates, (slot - first) * rows_each, self._align
            )
            if advance is None:
                ended.append(slot)
                continue
            sources += [slot * self.group.width + source for source, _ in advance.copies]
            targets += [slot * self.group.width + target for _, target in advance.copies]
        if sources:
            self.group.copy(sources, targets)
        for slot in reversed(ended):
            self._retire(slot)

    def _retire(self, slot: int) -> None:
        """Drops a sequence; the last one takes its slot, as in the group."""
        self.group.retire(slot)
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()
