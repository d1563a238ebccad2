"""The live sequences of one beam width, in step with the runner's slots."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np

from serving.engine.footprint import Extent
from serving.engine.prefix import Block, PrefixStore
from serving.engine.ranking import Offer, offers
from serving.engine.request import Failed
from serving.engine.runner import Candidates, Group, Prefill
from serving.engine.search import Advance
from serving.engine.sequence import Align, Sequence
from serving.errors import InternalError

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Entering:
    """A sequence whose prompt is being read; its slot's room is taken already."""

    sequence: Sequence
    prefill: Prefill


class Lane:
    """Slot i of the group holds `sequences[i]`; every change is made to both.

    Attributes:
        entering: Sequences that will join when their prompts have been read.
        claim: Sizes that the group's arenas stay within until another sequence comes.
    """

    def __init__(
        self,
        group: Group,
        align: Align,
        prefixes: PrefixStore[Block] | None = None,
        *,
        seats: bool = False,
    ) -> None:
        self.group = group
        self._seats = seats and group.width == 1
        self._align = align
        self.sequences: list[Sequence] = []
        self.entering: list[Entering] = []
        self.claim = Extent()
        self._prefixes = prefixes

    @property
    def members(self) -> list[Sequence]:
        """Who has a slot, and who will."""
        return [*self.sequences, *(entering.sequence for entering in self.entering)]

    @property
    def rows(self) -> int:
        """Rows in use."""
        return (len(self.sequences) + len(self.entering)) * self.group.width

    @property
    def state_bytes(self) -> int:
        """Bytes held now."""
        return self.group.state_bytes + sum(e.prefill.state_bytes for e in self.entering)

    def sweep(self, now_s: float) -> None:
        """Ends sequences that were cancelled or whose time is up."""
        self.entering = [e for e in self.entering if not e.sequence.end_if_due(now_s)]
        for slot in reversed(range(len(self.sequences))):
            if self.sequences[slot].end_if_due(now_s):
                self._retire(slot)

    def needs(self, joining: Several[Sequence] = ()) -> Extent:
        """The tightest sizes that will do for members and newcomers, however long they get."""
        return longest([*self.members, *joining])

    def expect(self, joining: Several[Sequence], coming: int) -> None:
        """Claims memory for newcomers; `coming` sequences are likely to be here soon."""
        self.claim = self.claim.covering(self.needs(joining))
        self.group.expect(self.claim, coming)

    def tighten(self) -> None:
        """Gives back all room that its members do not need."""
        self.group.tighten()
        self.claim = self.needs()

    def admit(self, batch: list[Sequence]) -> None:
        """Reads whole prompts together; their sequences take their first step, now or next turn.

        A prompt of one token is read by the next step of those who run: a call less.
        """
        if self._seats and all(len(s.request.decoder_ids) == 1 for s in batch):
            self.group.seat([sequence.request.prompt for sequence in batch])
            for sequence in batch:
                sequence.sit()
            self.sequences += batch
            return
        asks = [sequence.asks[0] for sequence in batch]
        candidates = self.group.admit([sequence.request.prompt for sequence in batch], asks)
        self._begin(batch, candidates)

    def read(self, entering: Entering, tokens: int) -> int:
        """Reads so much of a prompt, at most; at its end the sequence takes its first step.

        Returns:
            Tokens read.
        """
        left = entering.prefill.left
        if left > tokens:
            entering.prefill.read(tokens)
            return tokens
        candidates = self.group.join(entering.prefill, entering.sequence.asks[0])
        self.entering.remove(entering)
        self._begin([entering.sequence], candidates)
        return left

    def step(self) -> None:
        """Takes every sequence one token further."""
        token_ids = np.array([s.next_ids for s in self.sequences], np.int64).reshape(-1)
        asks = [ask for sequence in self.sequences for ask in sequence.asks]
        self._advance(self.group.step(token_ids, asks), 0, rows_each=self.group.width)

    def restart(self, group: Group) -> list[Sequence]:
        """Goes on with an empty group; returns the sequences of the old one."""
        lost, self.sequences = self.sequences, []
        self.group, self.claim = group, self.needs()
        return lost

    def _begin(self, batch: list[Sequence], candidates: Candidates) -> None:
        """Sequences whose prompts have just been read go on as the last slots."""
        first = len(self.sequences)
        self.sequences += batch
        if self._prefixes is not None:
            for slot, sequence in enumerate(batch, start=first):
                self._keep_prefix(self._prefixes, sequence, slot)
        self._advance(candidates, first, rows_each=1)

    def _keep_prefix(self, prefixes: PrefixStore[Block], sequence: Sequence, slot: int) -> None:
        ids = sequence.request.decoder_ids
        prefixes.put(ids, lambda start, stop: self.group.cut(slot, start, stop))

    def _advance(self, candidates: Candidates, first: int, rows_each: int) -> None:
        """Lets the searches choose, then moves state: beams first, then holes."""
        sources: list[int] = []
        targets: list[int] = []
        ended: list[int] = []
        joined = self.sequences[first:]
        ranked = offers(candidates, [sequence.beams for sequence in joined], rows_each)
        for slot, (sequence, offer) in enumerate(zip(joined, ranked, strict=True), start=first):
            advance = self._advanced(sequence, offer)
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

    def _advanced(self, sequence: Sequence, offer: Offer) -> Advance | None:
        """How a sequence goes on; None at its end. What it raises ends it, and nobody else."""
        try:
            return sequence.advance(offer, self._align)
        except Exception as error:
            log.exception("a search failed")
            sequence.tell(Failed(failure(error)))
            return None

    def _retire(self, slot: int) -> None:
        """Drops a sequence; the last one takes its slot, as in the group."""
        self.group.retire(slot)
        self.sequences[slot] = self.sequences[-1]
        self.sequences.pop()


def longest(sequences: Several[Sequence]) -> Extent:
    """The tightest sizes that will do for so many, however long they get."""
    requests = [sequence.request for sequence in sequences]
    return Extent.holding(
        len(requests),
        max((request.final_length for request in requests), default=0),
        max((request.source_length for request in requests), default=0),
    )


def failure(error: Exception) -> InternalError:
    """What a request is told when decoding raised."""
    told = InternalError(f"decoding failed: {error}")
    told.__cause__ = error
    return told
