"""All lanes of one model, and the rows and bytes that they share.

Memory is granted for the longest that a sequence may get, so that nothing that runs ever has to
give way, and who does not fit yet waits for others to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import replace

from serving.engine.footprint import Extent
from serving.engine.lane import Lane, longest
from serving.engine.prefix import Block, PrefixStore
from serving.engine.request import Request
from serving.engine.runner import Runner
from serving.engine.scheduler import Capacity
from serving.engine.sequence import Sequence
from serving.errors import InvalidRequest, TooLong

_MEBIBYTE = 1 << 20


class Lanes:
    """One lane for each width in use."""

    def __init__(
        self, runner: Runner, capacity: Capacity, prefixes: PrefixStore[Block] | None
    ) -> None:
        self._runner = runner
        self._capacity = capacity
        self._footprint = runner.footprint
        self._prefixes = prefixes
        self._by_width: dict[int, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        """The lanes, which may be lost or dropped meanwhile."""
        return iter(list(self._by_width.values()))

    @property
    def rows(self) -> int:
        """Rows in use over all widths."""
        return sum(lane.rows for lane in self._by_width.values())

    @property
    def state_bytes(self) -> int:
        """Bytes that all arenas hold now."""
        return sum(lane.state_bytes for lane in self._by_width.values())

    def refuse_too_large(self, request: Request) -> None:
        """Says what could never run, not even alone. For any thread.

        Raises:
            InvalidRequest: it asks for more rows than there are.
            TooLong: its state would need more memory than there is.
        """
        if request.rules.rows > self._capacity.rows:
            raise InvalidRequest(
                f"{request.rules.rows} beams or samples are more rows than the engine's "
                f"{self._capacity.rows}: ask for fewer",
                field="best_of" if request.rules.do_sample else "num_beams",
            )
        extent = Extent.holding(1, request.final_length, request.source_length)
        needed = self._footprint.bytes(request.rules.rows, extent)
        needed += self._reading_bytes(request)
        if needed > self._capacity.state_bytes:
            raise TooLong(
                f"up to {request.final_length} positions in {request.rules.rows} rows need "
                f"{needed // _MEBIBYTE} MiB, the engine has "
                f"{self._capacity.state_bytes // _MEBIBYTE} MiB: ask for fewer tokens or beams"
            )

    def fit(self, joining: Several[Sequence]) -> bool:
        """Whether there are rows and memory for newcomers of one width, and for all that run."""
        width = joining[0].width
        if self.rows + len(joining) * width > self._capacity.rows:
            return False
        return self._needed_bytes(joining, width) <= self._capacity.state_bytes

    def of(self, joining: Several[Sequence], waiting: int) -> Lane:
        """The lane of the newcomers' width, made where there is none, with memory for them.

        Args:
            waiting: Sequences that may come next.
        """
        width = joining[0].width
        if width not in self._by_width:
            self._by_width[width] = Lane(
                self._runner.group(width),
                self._runner.align,
                self._prefixes,
                seats=self._runner.seats,
            )
        if self._claimed_bytes(joining, width) > self._capacity.state_bytes:
            for lane in self._by_width.values():
                lane.tighten()
        lane = self._by_width[width]
        lane.expect(joining, self._coming(lane, joining, waiting))
        return lane

    def lose(self, lane: Lane) -> list[Sequence]:
        """Gives a lane whose state is suspect a new group; returns the sequences it had."""
        return lane.restart(self._runner.group(lane.group.width))

    def drop_empty(self) -> None:
        """Frees the arenas that nobody uses."""
        for width, lane in list(self._by_width.items()):
            if not lane.rows:
                lane.group.leave()
                del self._by_width[width]

    def clear(self) -> list[Sequence]:
        """Drops everything; returns who was there."""
        members = [sequence for lane in self._by_width.values() for sequence in lane.members]
        self._by_width.clear()
        return members

    def _coming(self, lane: Lane, joining: Several[Sequence], waiting: int) -> int:
        """Sequences that are likely to be in a lane soon, as far as rows and memory go."""
        width, claim = lane.group.width, lane.claim.covering(lane.needs(joining))
        each = self._footprint.bytes(width, replace(claim, sequences=1))
        return min(
            len(lane.members) + len(joining) + waiting,
            self._capacity.rows // width,
            self._capacity.state_bytes // max(1, each),
        )

    def _needed_bytes(self, joining: Several[Sequence], width: int) -> int:
        """Bytes that will do once everything is tight, a lone newcomer's reading included."""
        extents = {w: lane.needs() for w, lane in self._by_width.items()}
        lane = self._by_width.get(width)
        extents[width] = lane.needs(joining) if lane else longest(joining)
        return self._bytes(extents, joining)

    def _claimed_bytes(self, joining: Several[Sequence], width: int) -> int:
        """Bytes that the arenas may come to hold when nothing is tightened."""
        extents = {w: lane.claim for w, lane in self._by_width.items()}
        lane = self._by_width[width]
        extents[width] = lane.claim.covering(lane.needs(joining))
        return self._bytes(extents, joining)

    def _bytes(self, extents: dict[int, Extent], joining: Several[Sequence]) -> int:
        total = sum(self._footprint.bytes(width, extent) for width, extent in extents.items())
        reading = [entering.sequence for lane in self for entering in lane.entering]
        if len(joining) == 1:
            reading += joining
        return total + sum(self._reading_bytes(sequence.request) for sequence in reading)

    def _reading_bytes(self, request: Request) -> int:
        """What a prompt takes while it is read in pieces, apart from its slot."""
        if not self._runner.takes_chunks:
            return 0
        extent = Extent.holding(1, len(request.decoder_ids), request.source_length)
        return self._footprint.bytes(1, extent)
