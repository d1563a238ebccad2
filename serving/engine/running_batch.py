"""The live sequences of one beam width, in step with the runner's slots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.engine.request import Failed
from serving.engine.runners.candidates import Candidates
from serving.engine.runners.protocol import Group, Prefill
from serving.engine.search.protocol import StepResult
from serving.engine.search.ranking import SearchInput, search_inputs
from serving.engine.sequence import Align, SequenceState
from serving.engine.state.footprint import Extent
from serving.engine.state.prefix_cache import Block, PrefixCache
from serving.errors import InternalError

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PrefillingSequence:
    """A sequence whose prompt is being read; its slot's room is taken already."""

    sequence: SequenceState
    prefill: Prefill


class RunningBatch:
    """Slot i of the group holds `sequences[i]`; every change is made to both.

    Attributes:
        prefilling: Sequences that will join when their prompts have been read.
        reservation: Sizes that the group's arenas stay within until another sequence comes.
    """

    def __init__(
        self,
        group: Group,
        align: Align,
        prefixes: PrefixCache[Block] | None = None,
        *,
        supports_deferred_admission: bool = False,
    ) -> None:
        self.group = group
        self._defers_prefill = supports_deferred_admission and group.width == 1
        self._align = align
        self.sequences: list[SequenceState] = []
        self.prefilling: list[PrefillingSequence] = []
        self.reservation = Extent()
        self._prefixes = prefixes

    @property
    def members(self) -> list[SequenceState]:
        """Who has a slot, and who will."""
        return [*self.sequences, *(prefilling.sequence for prefilling in self.prefilling)]

    @property
    def rows(self) -> int:
        """Rows in use."""
        return (len(self.sequences) + len(self.prefilling)) * self.group.width

    @property
    def state_bytes(self) -> int:
        """Bytes held now."""
        return self.group.state_bytes + sum(e.prefill.state_bytes for e in self.prefilling)

    def abort_expired(self, now_s: float) -> None:
        """Ends sequences that were cancelled or whose time is up."""
        self.prefilling = [e for e in self.prefilling if not e.sequence.finish_if_due(now_s)]
        for slot in reversed(range(len(self.sequences))):
            if self.sequences[slot].finish_if_due(now_s):
                self._retire(slot)

    def needs(self, joining: Sequence[SequenceState] = ()) -> Extent:
        """The tightest sizes that will do for members and newcomers, however long they get."""
        return longest([*self.members, *joining])

    def reserve(self, joining: Sequence[SequenceState], expected_sequences: int) -> None:
        """Reserves memory for newcomers and for sequences that are expected soon."""
        self.reservation = self.reservation.covering(self.needs(joining))
        self.group.reserve(self.reservation, expected_sequences)

    def shrink(self) -> None:
        """Gives back all room that its members do not need."""
        self.group.shrink()
        self.reservation = self.needs()

    def admit(self, batch: list[SequenceState]) -> None:
        """Reads whole prompts together; their sequences take their first step, now or next turn.

        A prompt of one token is read by the next step of those who run: a call less.
        """
        if self._defers_prefill and all(len(s.request.decoder_ids) == 1 for s in batch):
            self.group.admit_deferred([sequence.request.prompt for sequence in batch])
            for sequence in batch:
                sequence.defer_prefill()
            self.sequences += batch
            return
        row_requests = [sequence.row_requests[0] for sequence in batch]
        candidates = self.group.admit([sequence.request.prompt for sequence in batch], row_requests)
        self._begin(batch, candidates)

    def read(self, prefilling: PrefillingSequence, tokens: int) -> int:
        """Reads so much of a prompt, at most; at its end the sequence takes its first step.

        Returns:
            Tokens read.
        """
        left = prefilling.prefill.remaining_tokens
        if left > tokens:
            prefilling.prefill.read(tokens)
            return tokens
        candidates = self.group.admit_prefilled(
            prefilling.prefill, prefilling.sequence.row_requests[0]
        )
        self.prefilling.remove(prefilling)
        self._begin([prefilling.sequence], candidates)
        return left

    def step(self) -> None:
        """Takes every sequence one token further."""
        token_ids = np.array([s.next_ids for s in self.sequences], np.int64).reshape(-1)
        row_requests = [
            row_request for sequence in self.sequences for row_request in sequence.row_requests
        ]
        self._advance(self.group.step(token_ids, row_requests), 0, rows_each=self.group.width)

    def restart(self, group: Group) -> list[SequenceState]:
        """Goes on with an empty group; returns the sequences of the old one."""
        lost, self.sequences = self.sequences, []
        self.group, self.reservation = group, self.needs()
        return lost

    def _begin(self, batch: list[SequenceState], candidates: Candidates) -> None:
        """Sequences whose prompts have just been read go on as the last slots."""
        first = len(self.sequences)
        self.sequences += batch
        if self._prefixes is not None:
            for slot, sequence in enumerate(batch, start=first):
                self._keep_prefix(self._prefixes, sequence, slot)
        self._advance(candidates, first, rows_each=1)

    def _keep_prefix(
        self, prefixes: PrefixCache[Block], sequence: SequenceState, slot: int
    ) -> None:
        ids = sequence.request.decoder_ids
        prefixes.put(ids, lambda start, stop: self.group.copy_block(slot, start, stop))

    def _advance(self, candidates: Candidates, first: int, rows_each: int) -> None:
        """Lets the searches choose, then moves state: beams first, then holes."""
        sources: list[int] = []
        targets: list[int] = []
        ended: list[int] = []
        joined = self.sequences[first:]
        ranked = search_inputs(candidates, [sequence.beams for sequence in joined], rows_each)
        for slot, (sequence, search_input) in enumerate(
            zip(joined, ranked, strict=True), start=first
        ):
            advance = self._advanced(sequence, search_input)
            if advance is None:
                ended.append(slot)
                continue
            for source, target in advance.copies:
                sources.append(slot * self.group.width + source)
                targets.append(slot * self.group.width + target)
        if sources:
            self.group.copy(sources, targets)
        for slot in reversed(ended):
            self._retire(slot)

    def _advanced(self, sequence: SequenceState, search_input: SearchInput) -> StepResult | None:
        """How a sequence goes on; None at its end. What it raises ends it, and nobody else."""
        try:
            return sequence.advance(search_input, self._align)
        except Exception as error:
            log.exception("a search failed")
            sequence.emit(Failed(decoding_error(error)))
            return None

    def _retire(self, slot: int) -> None:
        """Drops a sequence; the last one takes its slot, as in the group."""
        self.group.retire(slot)
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()


def longest(sequences: Sequence[SequenceState]) -> Extent:
    """The tightest sizes that will do for so many, however long they get."""
    requests = [sequence.request for sequence in sequences]
    return Extent.holding(
        len(requests),
        max((request.final_length for request in requests), default=0),
        max((request.source_length for request in requests), default=0),
    )


def decoding_error(error: Exception) -> InternalError:
    """What a request is told when decoding raised."""
    told = InternalError(f"decoding failed: {error}")
    told.__cause__ = error
    return told
