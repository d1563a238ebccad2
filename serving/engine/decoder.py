"""The loop's body, without a thread: schedule → run → choose → deliver.

A turn is a transaction: sequences join and leave only between turns. `decode` drives it to the end
for callers that have no need of a server, such as the exporter's verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from serving.engine.lane import Lane
from serving.engine.metrics import Metrics
from serving.engine.request import Cancelled, Event, Failed, Finished, Piece, Request
from serving.engine.runner import Runner
from serving.engine.scheduler import Capacity, Scheduler
from serving.engine.sequence import Sequence


class Decoder:
    """All sequences of one model. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        runner: Runner,
        capacity: Capacity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = Metrics()
        self._runner = runner
        self._scheduler = Scheduler(capacity)
        self._clock = clock
        self._lanes: dict[int, Lane] = {}
        self._joining: list[Sequence] = []  # between queue and lane, so that none is lost

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not len(self._scheduler) and not self.rows_in_use

    @property
    def rows_in_use(self) -> int:
        """Live rows over all widths."""
        return sum(lane.rows for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        """Sequences without rows."""
        return len(self._scheduler)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self._scheduler.add(sequence)

    def turn(self) -> None:
        """Ends what must end, prefills one batch, takes every running sequence one step."""
        started_s = self._clock()
        self._sweep(started_s)
        self._step_lanes()
        self._admit()
        self._drop_empty_lanes()
        self.metrics.steps += 1
        self.metrics.step_seconds += self._clock() - started_s
        self.metrics.rows_in_use, self.metrics.waiting = self.rows_in_use, self.waiting

    def fail(self, error: Exception) -> None:
        """Ends every sequence with an error; the groups, whose state is suspect, go."""
        live = [sequence for lane in self._lanes.values() for sequence in lane.sequences]
        self._lanes.clear()
        for sequence in (*live, *self._joining, *self._scheduler.clear()):
            sequence.tell(Failed(error))
        self._joining = []
        self.metrics.rows_in_use = self.metrics.waiting = 0

    def _sweep(self, now_s: float) -> None:
        self._scheduler.sweep(now_s)
        for lane in self._lanes.values():
            lane.sweep(now_s)

    def _admit(self) -> None:
        """Prefills the next batch, whose sequences take their first step by it."""
        self._joining = self._scheduler.next_batch(self.rows_in_use)
        if not self._joining:
            return
        width = self._joining[0].width
        if width not in self._lanes:
            self._lanes[width] = Lane(self._runner.group(width), self._runner.align)
        self._lanes[width].admit(self._joining)
        self.metrics.admitted += len(self._joining)
        self._joining = []

    def _step_lanes(self) -> None:
        for lane in self._lanes.values():
            if lane.sequences:
                self.metrics.row_steps += lane.rows
                lane.step()

    def _drop_empty_lanes(self) -> None:
        """Frees the arenas of widths that nobody uses; the last lane stays warm."""
        for width in [width for width, lane in self._lanes.items() if not lane.sequences]:
            if len(self._lanes) > 1:
                del self._lanes[width]


def decode(
    runner: Runner, requests: Iterable[Request], capacity: Capacity | None = None
) -> list[Finished]:
    """Answers to all requests, in order, decoded together as far as capacity allows.

    Raises:
        Exception: what the first request that failed was told.
    """
    decoder = Decoder(runner, capacity or Capacity())
    outcomes: list[list[Event]] = []
    for request in requests:
        outcomes.append([])
        decoder.add(Sequence(request, outcomes[-1].append))
    while not decoder.is_idle:
        decoder.turn()
    return [answer(events) for events in outcomes]


def answer(events: Iterable[Event]) -> Finished:
    """The final event, pieces skipped.

    Raises:
        Exception: what the request was told, if it failed.
    """
    final = next(event for event in events if not isinstance(event, Piece))
    if isinstance(final, Failed):
        raise final.error
    assert not isinstance(final, Cancelled | Piece), "nobody cancels here"
    return final
