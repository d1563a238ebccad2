"""The CUDA runner end to end over the stub: no numbers, but every launch, copy and capture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from export.precision import Precision
from inference.bundle.manifest import Bundle, Role
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import CandidateRequest, Edit, plain_request
from inference.engine.runners.protocol import Group, Prompt
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.stub_library import Counts, Stub

CASES = [
    ("gpt2", Precision.FP16),
    ("gpt2", Precision.BF16),
    ("gpt2", Precision.FP32),
    ("marian", Precision.FP16),
    ("llama", Precision.FP16),
    ("t5", Precision.FP16),
    ("bahdanau", Precision.FP16),
    ("rnn-lm", Precision.FP16),
    ("vision-encoder-decoder", Precision.FP16),
    ("vision-encoder-decoder", Precision.FP32),
    ("show-attend-tell", Precision.FP16),
]


def prompt_of(bundle: Bundle, tokens: int = 3) -> Prompt:
    """A prompt with a source of the bundle's kind."""
    token_ids = np.arange(1, tokens + 1)
    admit = bundle.manifest.graphs.get("admit")
    if admit is None:
        return Prompt(token_ids)
    pixels = admit.input(Role.PIXELS)
    if pixels is not None:
        shape = [size for size in pixels.shape[1:] if isinstance(size, int)]
        return Prompt(token_ids, pixels=np.zeros(shape, np.uint8))
    return Prompt(token_ids, source_ids=np.arange(5))


def counted(stub: Stub, call: Callable[[], object]) -> Counts:
    before = stub.read()
    call()
    return stub.read() - before


def step(group: Group, rows: int) -> None:
    group.step(np.zeros(rows, np.int64), [plain_request(2)] * rows)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_steps_are_replayed_with_one_launch(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision
) -> None:
    bundle = on_device(name, precision)
    runner = make_runner(bundle, "cuda:0")
    group = runner.group(1)
    group.admit([prompt_of(bundle)] * 2, [plain_request(1)] * 2)
    first, *_ = [counted(stub, lambda: step(group, 2)) for _ in range(3)]
    later = [counted(stub, lambda: step(group, 2)) for _ in range(3)]
    assert first.launches > later[0].launches
    assert first.graph_launches == 0
    for each in later:
        assert each.captures == 0
        assert each.graph_launches == 1
        assert each.allocations == 0
    runner.close()


def test_step_copies_its_controls_and_fetches_candidates(stub: Stub, on_device: OnDevice) -> None:
    """Tokens and lengths go there, ids and log-probabilities of two candidates come back."""
    runner = make_runner(on_device("gpt2", Precision.FP16), "cuda")
    group = runner.group(1)
    group.admit([Prompt(np.arange(1, 4))] * 2, [plain_request(1)] * 2)
    for _ in range(3):
        step(group, 2)
    found = counted(stub, lambda: step(group, 2))
    assert (found.host_to_device, found.device_to_host) == (2, 2)
    assert found.device_to_device == found.memsets == 0
    runner.close()


def test_edits_and_beams_stay_on_the_device(stub: Stub, on_device: OnDevice) -> None:
    bundle = on_device("gpt2", Precision.FP16)
    runner = make_runner(bundle, "cuda")
    group = runner.group(3)
    group.admit([Prompt(np.arange(1, 4))], [plain_request(3)])
    found = counted(stub, lambda: group.copy([0, 0], [1, 2]))
    assert (found.batches, found.device_to_device, found.device_to_host) == (1, 0, 0)
    found = counted(stub, lambda: group.copy([0, 1], [1, 2]))  # the second reads the first's row
    assert (found.batches, found.device_to_device) == (2, 0)
    ones = np.ones(4, np.float32)
    request = CandidateRequest(2, Edit(np.arange(4), ones, ones * 2, ones))
    for _ in range(4):
        group.step(np.zeros(3, np.int64), [request] * 3)
    found = counted(stub, lambda: group.step(np.zeros(3, np.int64), [request] * 3))
    assert found.graph_launches == 1
    assert found.device_to_host == 3  # edited scores, ids, log-probabilities
    runner.close()


def test_other_layouts_are_other_graphs(stub: Stub, on_device: OnDevice) -> None:
    """More rows and longer rows are captured anew; the first layout is replayed when it returns."""
    runner = make_runner(on_device("gpt2", Precision.FP16), "cuda")
    group = runner.group(1)
    prompt = Prompt(np.arange(100) % 8)  # in a bucket of 128 positions, which no step leaves

    def captures(rows: int) -> int:
        return sum(counted(stub, lambda: step(group, rows)).captures for _ in range(4))

    group.admit([prompt] * 8, [plain_request(1)] * 8)
    assert captures(8) == 1
    for _ in range(3):
        group.retire(0)
    assert captures(5) == 1  # bound to 6 rows
    group.retire(0)
    assert captures(4) == 1
    group.admit([prompt] * 4, [plain_request(1)] * 4)
    assert captures(8) == 0
    group.release()
    again = runner.group(1)
    again.admit([prompt] * 8, [plain_request(1)] * 8)
    assert sum(counted(stub, lambda: step(again, 8)).captures for _ in range(4)) == 0
    runner.close()
