"""A client that leaves frees its slot within two steps: queued, prefilling or decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serving.engine.decoder import Decoder
from serving.engine.request import Cancelled, EngineRequest, Event, Finished
from serving.engine.scheduler import Capacity
from serving.engine.sequence import SequenceState
from serving.generation import Generation
from tests.serving.engine.fake_runner import FakeRunner, hashed_logits

LOGITS = hashed_logits(20, end_bias=-100.0)  # nobody ends before the last token
RULES = Generation(decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=60)
STEPS = 2


class House:
    """A decoder of two rows with somebody in it, and whoever comes then."""

    def __init__(self) -> None:
        capacity = Capacity(rows=2, prefill_tokens=20, prefill_tokens_beside=4, chunk_tokens=4)
        self.runner = FakeRunner(LOGITS, 20)
        self.decoder = Decoder(self.runner, capacity)
        self.resident, self.stays = self.come()
        self.decoder.step()

    def come(self, prompt: int = 1, width: int = 1) -> tuple[SequenceState, list[Event]]:
        events: list[Event] = []
        rules = RULES.model_copy(update={"num_beams": width})
        sequence = SequenceState(
            EngineRequest(rules, np.array([4]), prompt_ids=(2,) * prompt), events.append
        )
        self.decoder.add(sequence)
        return sequence, events

    def turns_until(self, reservation: Callable[[], bool]) -> int:
        """Turns of the loop, at most as many as a leaver may cost."""
        for turn in range(STEPS + 1):
            if reservation():
                return turn
            self.decoder.step()
        raise AssertionError(f"not within {STEPS} steps")

    def whereabouts(self, who: SequenceState) -> str:
        """Where somebody is that came after the resident."""
        if self.decoder.waiting:
            return "queued"
        return "decoding" if who.generated else "prefilling"

    @property
    def live_rows(self) -> int:
        """Rows that hold somebody's state, by the runner's own account."""
        return sum(len(group.rows) for group in self.runner.groups)


def leave(house: House, who: SequenceState, events: list[Event], after: int, where: str) -> None:
    """Somebody who has been there for so many turns leaves, and nothing of him is left."""
    for _ in range(after):
        house.decoder.step()
    assert house.whereabouts(who) == where
    who.cancel()
    assert house.turns_until(lambda: bool(events)) <= STEPS
    assert [type(event) for event in events] == [Cancelled]
    assert house.decoder.rows_in_use == 1
    assert house.live_rows == 1
    assert house.decoder.waiting == 0


def check_that_the_resident_is_answered(house: House) -> None:
    while not house.decoder.is_idle:
        house.decoder.step()
    (end,) = house.stays
    assert isinstance(end, Finished)
    assert len(end.hypotheses[0].token_ids) == RULES.max_new_tokens
    assert house.decoder.rows_in_use == house.live_rows == 0
    assert house.decoder.metrics.state_bytes == 0


@pytest.mark.parametrize("after", [0, 1, 5])
def test_queued(after: int) -> None:
    house = House()
    who, events = house.come(width=2)  # two rows, of which one is taken
    leave(house, who, events, after, "queued")
    check_that_the_resident_is_answered(house)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_prefilling(after: int) -> None:
    house = House()
    who, events = house.come(prompt=30)  # eight pieces, a turn each
    leave(house, who, events, after, "prefilling")
    check_that_the_resident_is_answered(house)


@pytest.mark.parametrize("after", [1, 2, 20])
def test_decoding(after: int) -> None:
    house = House()
    who, events = house.come()
    leave(house, who, events, after, "decoding")
    check_that_the_resident_is_answered(house)


def test_freed_slot_goes_to_who_waits_within_the_same_steps() -> None:
    house = House()
    who, told = house.come()
    house.decoder.step()
    waits, events = house.come()
    house.decoder.step()
    assert house.decoder.waiting == 1
    who.cancel()
    assert house.turns_until(lambda: waits.generated > 0) <= STEPS
    assert [type(event) for event in told] == [Cancelled]
    assert events == []
    check_that_the_resident_is_answered(house)


def test_beams_that_leave_take_all_their_rows() -> None:
    house = House()
    house.resident.cancel()
    house.decoder.step()
    who, events = house.come(width=2)
    house.decoder.step()
    house.decoder.step()
    assert house.decoder.rows_in_use == 2
    who.cancel()
    assert house.turns_until(lambda: bool(events)) <= STEPS
    assert house.decoder.rows_in_use == house.live_rows == house.decoder.metrics.state_bytes == 0
