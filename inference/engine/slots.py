"""The sequences of one beam width and the runner's slots that they hold, changed together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import Candidates
from inference.engine.runners.protocol import Group
from inference.engine.search.protocol import SearchInput, StepResult, search_inputs
from inference.engine.search.request import Failed
from inference.engine.sequence import Align, SequenceState
from inference.engine.state.prefix_cache import Block, PrefixCache
from inference.model_errors import hide_cause


class Slots:
    """Slot i of the group holds `sequences[i]`; every change is made to both.

    Args:
        prefixes: Where prefixes of prompts are stored, if at all.
    """

    def __init__(self, group: Group, align: Align, prefixes: PrefixCache[Block] | None) -> None:
        self.group = group
        self.sequences: list[SequenceState] = []
        self._align = align
        self._prefixes = prefixes

    def _begin(self, batch: list[SequenceState], candidates: Candidates, row: int = 0) -> None:
        """Adds sequences that were just prefilled as the last slots.

        Args:
            row: The first one's in the candidates.
        """
        first = len(self.sequences)
        self.sequences += batch
        if self._prefixes is not None:
            for slot, sequence in enumerate(batch, start=first):
                self._store_prefix(self._prefixes, sequence.prefix_ids, slot)
        self._advance(candidates, first, rows_each=1, row=row)

    def _store_prefix(
        self,
        prefixes: PrefixCache[Block],
        ids: Sequence[int],
        slot: int,
        *,
        has_rest: bool = False,
    ) -> None:
        prefixes.put(
            ids,
            lambda start, stop: self.group.copy_block(slot, start, stop),
            has_rest=has_rest,
        )

    def _advance(self, candidates: Candidates, first: int, rows_each: int, row: int = 0) -> None:
        """Lets searches choose tokens, then moves state: beams first, then retired slots."""
        sources: list[int] = []
        targets: list[int] = []
        ended: list[int] = []
        stepped = self.sequences[first:]
        beams = [sequence.beams for sequence in stepped]
        inputs = search_inputs(candidates, beams, rows_each, row)
        for slot, (sequence, each) in enumerate(zip(stepped, inputs, strict=True), start=first):
            result = self._search(sequence, each)
            if result is None:
                ended.append(slot)
                continue
            for source, target in result.copies:
                sources.append(slot * self.group.width + source)
                targets.append(slot * self.group.width + target)
        if sources:
            self.group.copy(sources, targets)
        for slot in reversed(ended):
            self._retire(slot)

    def _search(self, sequence: SequenceState, search_input: SearchInput) -> StepResult | None:
        """The next step of a sequence; None at its end. An exception ends only this sequence."""
        try:
            return sequence.advance(search_input, self._align)
        except Exception as error:
            sequence.emit(Failed(hide_cause(error, "a search failed")))
            return None

    def _retire(self, slot: int, *, unread: int = 0) -> None:
        """Drops a sequence; the last one takes its slot, as in the group.

        Its tokens are kept for the next turn of a conversation, the last block in part: none but
        this sequence wrote to that, so nothing is copied for it while it runs (D119).

        Args:
            unread: Of its last tokens, those that were no inputs yet.
        """
        sequence = self.sequences[slot]
        if self._prefixes is not None and sequence.generated:
            ids = sequence.prefix_ids
            ids = ids[: len(ids) - unread]
            self._store_prefix(self._prefixes, ids, slot, has_rest=True)
        self.group.retire(slot)
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()

    def _take(
        self, sequence: SequenceState, token_ids: list[int], log_probs: NDArray[np.float32]
    ) -> bool:
        """Whether a sequence runs on with these tokens. An exception ends only this sequence."""
        try:
            return sequence.take(token_ids, log_probs, self._align)
        except Exception as error:
            sequence.emit(Failed(hide_cause(error, "a search failed")))
            return False
