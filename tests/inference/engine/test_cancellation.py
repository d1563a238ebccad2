"""A cancelled sequence frees its slot within two steps: queued, prefilling or decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from inference.engine.engine_core import EngineCore
from inference.engine.scheduler import Capacity
from inference.engine.search.request import Cancelled, EngineRequest, Event
from inference.engine.sequence import SequenceState
from inference.generation import Generation
from inference.sequences import Finished
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits

LOGITS = hashed_logits(20, end_bias=-100.0)  # no end token before the last
RULES = Generation(decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=60)
STEPS = 2


class Scenario:
    """A decoder of two rows with one resident sequence; others are added."""

    def __init__(self) -> None:
        capacity = Capacity(rows=2, prefill_tokens=20, prefill_tokens_beside=4, chunk_tokens=4)
        self.runner = FakeRunner(LOGITS, 20)
        self.decoder = EngineCore(self.runner, capacity)
        self.resident, self.stays = self.add()
        self.decoder.step()

    def add(self, prompt: int = 1, width: int = 1) -> tuple[SequenceState, list[Event]]:
        events: list[Event] = []
        rules = RULES.model_copy(update={"num_beams": width})
        sequence = SequenceState(
            EngineRequest(rules, np.array([4]), prompt_ids=(2,) * prompt), events.append
        )
        self.decoder.add(sequence)
        return sequence, events

    def turns_until(self, is_reached: Callable[[], bool]) -> int:
        """Turns of the loop until the condition holds, at most `STEPS`."""
        for turn in range(STEPS + 1):
            if is_reached():
                return turn
            self.decoder.step()
        raise AssertionError(f"not within {STEPS} steps")

    def phase(self, sequence: SequenceState) -> str:
        """The phase of a sequence added after the resident."""
        if self.decoder.waiting:
            return "queued"
        return "decoding" if sequence.generated else "prefilling"

    @property
    def live_rows(self) -> int:
        """Rows with state, counted in the runner."""
        return sum(len(group.rows) for group in self.runner.groups)


def cancel(
    scenario: Scenario, sequence: SequenceState, events: list[Event], after: int, where: str
) -> None:
    """Cancels a sequence after some turns and checks that its state is freed."""
    for _ in range(after):
        scenario.decoder.step()
    assert scenario.phase(sequence) == where
    sequence.cancel()
    assert scenario.turns_until(lambda: bool(events)) <= STEPS
    assert [type(event) for event in events] == [Cancelled]
    assert scenario.decoder.rows_in_use == 1
    assert scenario.live_rows == 1
    assert scenario.decoder.waiting == 0


def check_that_the_resident_is_answered(scenario: Scenario) -> None:
    while not scenario.decoder.is_idle:
        scenario.decoder.step()
    (end,) = scenario.stays
    assert isinstance(end, Finished)
    assert len(end.hypotheses[0].token_ids) == RULES.max_new_tokens
    assert scenario.decoder.rows_in_use == scenario.live_rows == 0
    assert scenario.decoder.metrics.state_bytes == 0


@pytest.mark.parametrize("after", [0, 1, 5])
def test_queued(after: int) -> None:
    scenario = Scenario()
    sequence, events = scenario.add(width=2)  # two rows, of which one is taken
    cancel(scenario, sequence, events, after, "queued")
    check_that_the_resident_is_answered(scenario)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_prefilling(after: int) -> None:
    scenario = Scenario()
    sequence, events = scenario.add(prompt=30)  # eight chunks, one per turn
    cancel(scenario, sequence, events, after, "prefilling")
    check_that_the_resident_is_answered(scenario)


@pytest.mark.parametrize("after", [1, 2, 20])
def test_decoding(after: int) -> None:
    scenario = Scenario()
    sequence, events = scenario.add()
    cancel(scenario, sequence, events, after, "decoding")
    check_that_the_resident_is_answered(scenario)


def test_freed_slot_is_assigned_to_a_queued_sequence_within_the_same_steps() -> None:
    scenario = Scenario()
    sequence, first_events = scenario.add()
    scenario.decoder.step()
    waits, events = scenario.add()
    scenario.decoder.step()
    assert scenario.decoder.waiting == 1
    sequence.cancel()
    assert scenario.turns_until(lambda: waits.generated > 0) <= STEPS
    assert [type(event) for event in first_events] == [Cancelled]
    assert events == []
    check_that_the_resident_is_answered(scenario)


def test_cancelled_beams_free_all_their_rows() -> None:
    scenario = Scenario()
    scenario.resident.cancel()
    scenario.decoder.step()
    sequence, events = scenario.add(width=2)
    scenario.decoder.step()
    scenario.decoder.step()
    assert scenario.decoder.rows_in_use == 2
    sequence.cancel()
    assert scenario.turns_until(lambda: bool(events)) <= STEPS
    assert (
        scenario.decoder.rows_in_use
        == scenario.live_rows
        == scenario.decoder.metrics.state_bytes
        == 0
    )
