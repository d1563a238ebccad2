"""Requests that wait for the engine: submission, abort, shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from inference.engine.engine import Engine
from inference.engine.runners.candidates import Candidates
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from serving.backends.autoregressive.request_queue import (
    PendingQueue,
    PendingResponse,
    ResponseSender,
)
from tests.inference.engine.fake_runner import FakeRunner
from tests.inference.engine.toy_bundles import VOCABULARY, attention_bundle, attention_logits
from tests.serving.backends.test_autoregressive import DEFAULTS, PATIENCE_S, FakeChannel


class GatedRunner(FakeRunner):
    """Steps only when the test releases its gate."""

    def __init__(self) -> None:
        super().__init__(attention_logits, VOCABULARY)
        self.gate = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def group(self, width: int):
        group, runner = super().group(width), self
        step = group.step

        def gated(*arguments: object, **options: object) -> Candidates:
            runner.began.release()
            assert runner.gate.acquire(timeout=PATIENCE_S)
            return step(*arguments, **options)

        group.step = gated
        return group


class Backend:
    """An engine with one waiting place behind a pending queue."""

    def __init__(self, folder) -> None:
        from inference.engine.validation import RequestValidator

        self.runner = GatedRunner()
        capacity = Capacity(waiting=1)
        self.engine = Engine(
            self.runner, RequestValidator(attention_bundle(folder).manifest), capacity
        )
        self.sender = ResponseSender(poll_s=1e6)
        self.queue = PendingQueue(self.engine, self.sender)

    def submit(self, name: str, length: int = 30) -> tuple[FakeChannel, PendingResponse]:
        channel = FakeChannel()
        channel.gate.set()
        pending = self.sender.open(channel)
        rules = DEFAULTS.model_copy(update={"num_beams": 1, "max_new_tokens": length})
        self.queue.submit(name, pending, EngineRequest(rules, np.array([4])))
        return channel, pending

    def close(self) -> None:
        for _ in range(200):
            self.runner.gate.release()
        self.engine.close()
        self.queue.close()
        self.sender.close()


@pytest.fixture
def backend(tmp_path) -> Iterator[Backend]:
    made = Backend(tmp_path)
    yield made
    made.close()


def test_running_sequence_takes_no_further_step_after_an_abort(backend: Backend) -> None:
    channel, pending = backend.submit("one")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    backend.queue.abort("one")
    backend.runner.gate.release()  # the step under way
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []
    assert pending.sequence.generated <= 2, "prefill chose one token, the open step another"
    assert not backend.runner.began.acquire(blocking=False), "a step after the abort"


def test_request_is_submitted_at_once_while_the_engine_has_capacity(backend: Backend) -> None:
    _, pending = backend.submit("one")
    assert pending.sequence is not None


def test_queued_request_ends_at_once_when_aborted(backend: Backend) -> None:
    running, _ = backend.submit("running")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    others = {name: backend.submit(name) for name in ("accepted", "queued", "behind")}
    backend.queue.abort("behind")
    assert others["behind"][0].ended.wait(PATIENCE_S)
    assert not running.ended.is_set()
    for _ in range(200):
        backend.runner.gate.release()
    for name in ("accepted", "queued"):
        assert others[name][0].ended.wait(PATIENCE_S)
        assert others[name][0].seen, "its response"
    assert others["behind"][0].seen == []
    assert others["behind"][1].sequence is None


def test_queued_request_that_its_client_cancelled_ends(backend: Backend) -> None:
    """Triton never frees a request without a final response, nor unloads its model."""
    backend.submit("running")
    assert backend.runner.began.acquire(timeout=PATIENCE_S)
    backend.submit("accepted")
    channel, pending = backend.submit("behind")
    pending.abort()  # as the poll does
    for _ in range(200):
        backend.runner.gate.release()
    assert channel.ended.wait(PATIENCE_S)
    assert channel.seen == []
    assert pending.sequence is None


def test_abort_of_a_finished_or_unknown_request_is_no_error(backend: Backend) -> None:
    channel, _ = backend.submit("one", length=1)
    for _ in range(3):
        backend.runner.gate.release()
    assert channel.ended.wait(PATIENCE_S)
    backend.queue.abort("one")
    backend.queue.abort("unknown")


def test_queued_requests_fail_when_the_engine_is_closed(tmp_path) -> None:
    backend = Backend(tmp_path)
    channels = [backend.submit(f"{number}")[0] for number in range(6)]
    backend.close()
    assert all(channel.ended.is_set() for channel in channels)
