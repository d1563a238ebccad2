"""llama.cpp as a peer: weights in its order, and the reason where it is missing."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from benchmarks.speed import __main__ as speed
from benchmarks.speed import llama_cpp


def test_halves_of_a_head_become_neighbours() -> None:
    weights = np.arange(8 * 3).reshape(8, 3)  # two heads of four
    rows = llama_cpp.pair_halves(weights, 2)[:, 0] // 3
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    for lacking in ("llama_cpp", "gguf"):
        monkeypatch.setattr(
            llama_cpp.importlib.util,
            "find_spec",
            lambda name, lacking=lacking: None if name == lacking else find("json"),
        )
        assert llama_cpp.missing() == f"{lacking} is not installed"
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: find("json"))
    assert llama_cpp.missing() is None


def test_decoders_are_measured_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["speed"])
    assert not set(speed.parse_arguments().models) & set(speed.DECODERS)
    runtimes = {system.runtime for system in speed.systems_of(speed.DECODERS[0])}
    assert runtimes == {"triptych-openvino", *speed.PEERS, "transformers"}
