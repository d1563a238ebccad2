"""What holds of every `triptych train`, whatever it trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import Result

from export.graphs.source_model import SourceModel
from export.training import resumable_training
from tests.export.conftest import TwinPair
from tests.export.oracle import compare, difference

Run = Callable[..., Result]
"""Trains into a folder, with further flags."""


def assert_same_logits(theirs: Any, trained: Path) -> None:
    compared = list(compare(TwinPair(theirs, SourceModel.open(trained))))
    assert compared
    for place, wanted, given in compared:
        assert difference(wanted, given) < 1e-4, place


def assert_resumed_is_uninterrupted(
    monkeypatch: pytest.MonkeyPatch, owner: Any, loss: str, run: Run, trained: Path, output: Path
) -> None:
    """Interrupts the fourth of four steps, of which every second is saved, and resumes.

    Args:
        owner: Has the function `loss` that each step calls.
        trained: The folder of the uninterrupted training.
    """
    monkeypatch.setattr(resumable_training, "SAVE_EVERY", 2)
    original, calls = getattr(owner, loss), []

    def interrupted(*arguments: object) -> torch.Tensor:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(owner, loss, interrupted)
    assert "run again to resume" in run(output).output
    assert not (output / "model.safetensors").exists()
    resumption = run(output)
    assert resumption.exit_code == 0
    assert "held-out" in resumption.output
    assert len(calls) == 4 + 2  # the third step was not saved
    whole, resumed = (load_file(each / "model.safetensors") for each in (trained, output))
    assert all(np.array_equal(resumed[name], value) for name, value in whole.items())
    assert not (output / "training_state.pt").exists()


def assert_finished_is_left_alone(run: Run, trained: Path) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    result = run(trained)
    assert result.exit_code == 0
    assert "is finished" in result.output
    assert (trained / "model.safetensors").stat().st_mtime_ns == before
    other = run(trained, "--seed", "2")
    assert other.exit_code == 1
    assert "holds another training (seed was 1 and is 2)" in other.output.replace("\n", "")
