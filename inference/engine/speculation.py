"""Steps that verify drafts: several tokens of a sequence in one call, where that pays (D100)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from inference.engine.drafts import MOST_ROWS, paying
from inference.engine.runners.candidates import Candidates
from inference.engine.runners.protocol import Group, RaggedGroup
from inference.engine.sequence import SequenceState

Drafts = Sequence[Sequence[int]]
"""What may follow the next input of each sequence."""


class Speculation:
    """The steps with drafts of one group.

    Args:
        most: Tokens of the longest draft.
    """

    def __init__(self, group: RaggedGroup, most: int) -> None:
        self.group = group
        self._most = most

    def find(self, sequences: Sequence[SequenceState]) -> Drafts:
        """Drafts that are worth their rows and have room; nothing where no row has one."""
        if len(sequences) >= MOST_ROWS:
            return []
        found = [sequence.draft(self._most, self.group.vocabulary_size) for sequence in sequences]
        if not any(draft.token_ids for draft in found):
            return []
        drafts = paying(found, is_padded=self.group.pads_rows)
        return drafts if self.group.has_room(drafts) else []

    def step(
        self, sequences: Sequence[SequenceState], drafts: Drafts
    ) -> tuple[Candidates, Sequence[int]]:
        """Candidates after the next input of each sequence and each token of its draft.

        Returns:
            Candidates, and each sequence's first row in them.
        """
        sizes = [1 + len(draft) for draft in drafts]
        if self.group.pads_rows:
            sizes = [max(sizes)] * len(sizes)
        token_ids = np.array([sequence.next_ids[0] for sequence in sequences], np.int64)
        requests = [
            sequence.row_requests[0]
            for sequence, size in zip(sequences, sizes, strict=True)
            for _ in range(size)
        ]
        candidates = self.group.step_with_drafts(token_ids, drafts, requests)
        return candidates, [0, *accumulate(sizes[:-1])]


def speculation_of(group: Group, most: int) -> Speculation | None:
    """The steps with drafts of a group; None where it has none."""
    if group.width > 1 or not most or not isinstance(group, RaggedGroup):
        return None
    return Speculation(group, most)
