"""The queue_: who waits for the engine, and who leaves while waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from serving.backends.autoregressive.pending_queue import PendingQueue
from serving.backends.autoregressive.response_sender import PendingResponse, ResponseSender
from serving.engine.engine import Engine
from serving.engine.request import EngineRequest
from serving.engine.runners.candidates import Candidates
from serving.engine.scheduler import Capacity
from tests.serving.backends.test_autoregressive import DEFAULTS, PATIENCE_S, FakeChannel
from tests.serving.engine.fake_runner import FakeRunner
from tests.serving.engine.toy_bundles import VOCABULARY, attention_bundle, attention_logits


class GatedRunner(FakeRunner):
    """Steps when the test lets it."""

    def __init__(self) -> None:
        super().__init__(attention_logits, VOCABULARY)
        self.gate = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def group(self, width: int):  # type: ignore[no-untyped-def]
        group, runner = super().group(width), self
        step = group.step

        def gated(*arguments: object, **options: object) -> Candidates:
            runner.began.release()
            assert runner.gate.acquire(timeout=PATIENCE_S)
            return step(*arguments, **options)

        group.step = gated  # type: ignore[method-assign]
        return group


class House:
    """An engine of few rows behind a queue_."""

    def __init__(self, folder) -> None:  # type: ignore[no-untyped-def]
        from serving.engine.validation import RequestValidator

        self.runner = GatedRunner()
        capacity = Capacity(waiting=1)
        self.engine = Engine(
            self.runner, RequestValidator(attention_bundle(folder).manifest), capacity
        )
        self.sender = ResponseSender(poll_s=1e6)
        self.queue_ = PendingQueue(self.engine, self.sender)

    def submit(self, name: str, length: int = 30) -> tuple[FakeChannel, PendingResponse]:
        channel = FakeChannel()
        channel.gate.set()
        pending = self.sender.open(channel)
        rules = DEFAULTS.model_copy(update={"num_beams": 1, "max_new_tokens": length})
        self.queue_.submit(name, pending, EngineRequest(rules, np.array([4])))
        return channel, pending

    def close(self) -> None:
        for _ in range(200):
            self.runner.gate.release()
        self.engine.close()
        self.queue_.close()
        self.sender.close()


@pytest.fixture
def house(tmp_path) -> Iterator[House]:  # type: ignore[no-untyped-def]
    made = House(tmp_path)
    yield made
    made.close()


def test_running_sequence_that_is_aborted_takes_no_further_step(house: House) -> None:
    channel, pending = house.submit("one")
    assert house.runner.began.acquire(timeout=PATIENCE_S)
    house.queue_.abort("one")
    house.runner.gate.release()  # the step that was going on
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []
    assert pending.sequence is not None
    assert pending.sequence.generated <= 2, "prefill chose one token, the open step another"
    assert not house.runner.began.acquire(blocking=False), "a step was taken for nobody"


def test_request_that_finds_room_is_accepted_on_the_spot(house: House) -> None:
    _, pending = house.submit("one")
    assert pending.sequence is not None


def test_request_that_is_aborted_while_it_waits_ends_at_once(house: House) -> None:
    running, _ = house.submit("running")
    assert house.runner.began.acquire(timeout=PATIENCE_S)
    others = {name: house.submit(name) for name in ("accepted", "at the door", "behind")}
    house.queue_.abort("behind")
    assert others["behind"][0].ended.wait(PATIENCE_S)
    assert not running.ended.is_set()
    for _ in range(200):
        house.runner.gate.release()
    for name in ("accepted", "at the door"):
        assert others[name][0].ended.wait(PATIENCE_S)
        assert others[name][0].seen, "its answer"
    assert others["behind"][0].seen == []
    assert others["behind"][1].sequence is None


def test_calling_off_who_has_left_is_no_error(house: House) -> None:
    channel, _ = house.submit("one", length=1)
    for _ in range(3):
        house.runner.gate.release()
    assert channel.ended.wait(PATIENCE_S)
    house.queue_.abort("one")
    house.queue_.abort("never came")


def test_closed_engine_answers_everyone_in_the_hall(tmp_path) -> None:  # type: ignore[no-untyped-def]
    house = House(tmp_path)
    channels = [house.submit(f"{number}")[0] for number in range(6)]
    house.close()
    assert all(channel.ended.is_set() for channel in channels)
