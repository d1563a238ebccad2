"""What the gate holds at a time and calls twice: PyTorch is done before a graph is opened."""

from __future__ import annotations

from typing import Any

import pytest

from export.parity import graph_runs, token_parity, verify
from export.parity.parity_inputs import Feeds, Run
from export.parity.token_parity import compare_tokens
from tests.export.conftest import Bundles, Twins


def test_outputs_of_pytorch_are_there_before_a_graph_is_opened(
    twins: Twins, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[str] = []
    modules, sessions = verify.torch_run, graph_runs.LazySessions.__call__

    def called(graphs: Any) -> Run:
        run = modules(graphs)

        def recorded(key: str, feeds: Feeds) -> dict[str, Any]:
            callers.append("PyTorch")
            return run(key, feeds)

        return recorded

    def opened(self: graph_runs.LazySessions, key: str, feeds: Feeds) -> dict[str, Any]:
        callers.append("graph")
        return sessions(self, key, feeds)

    monkeypatch.setattr(verify, "torch_run", called)
    monkeypatch.setattr(graph_runs.LazySessions, "__call__", opened)
    monkeypatch.setattr(verify, "compare_tokens", lambda *_: token_parity.TokenParity())
    report = verify.verify(twins("gpt2", "odd").graphs(), bundles("gpt2", "odd"))
    assert report.observations
    assert callers.index("graph") == callers.count("PyTorch") >= 2 * 14
    assert 2 * callers.count("graph") == callers.count("PyTorch")  # timed as they are compared
    assert report.milliseconds.keys() == {"step"}
    assert report.milliseconds["step"] > 0


def test_tokens_of_pytorch_are_there_before_a_graph_is_opened(
    twins: Twins, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners: list[str] = []
    search = token_parity.decode

    def recorded(runner: Any, *given: Any) -> Any:
        runners.append(type(runner).__name__)
        return search(runner, *given)

    def opened(*given: Any) -> Any:
        assert runners == ["TorchRunner"] * len(token_parity.BEAMS)
        return make_runner(*given)

    make_runner = token_parity.make_runner
    monkeypatch.setattr(token_parity, "decode", recorded)
    monkeypatch.setattr(token_parity, "make_runner", opened)
    parity = compare_tokens(twins("gpt2", "odd").graphs(), bundles("gpt2", "odd"))
    assert parity.compared
    assert "TorchRunner" not in runners[len(token_parity.BEAMS) :]
