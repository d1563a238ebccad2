"""Several instances of one model, living at once: by `instance_group`, and during a reload.

Their metrics once had equal labels. Triton shares such metrics and frees them with the first
instance that closes, so that it crashed with a corrupted heap at the third reload at the latest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from serving.liveness.stall_detector import EngineStats
from serving.triton.control import VersionPolicy, model_config
from serving.triton.server import TritonServer
from tests.inference.tiny_models import publish
from tests.serving.triton.tiny import (
    CONFIG,
    answer,
    brief_server,
    living_stubs,
    settings,
    times,
    wait_until,
)

pytestmark = pytest.mark.integration

REQUESTS = 24
TWO = CONFIG.replace("count: 1", "count: 2")


@pytest.fixture
def server(repository: Path) -> Iterator[TritonServer]:
    """With `pair`, a model of two instances."""
    publish(repository, "pair", times(2), TWO)
    with brief_server(settings(repository)) as started:
        yield started


def pids(server: TritonServer) -> set[int]:
    assert server.pid is not None
    return living_stubs(server.pid).get("pair", set())


def stats(server: TritonServer) -> EngineStats:
    status = server.status()
    assert status is not None, "Triton does not respond"
    return status.engines["pair"]


def answers(server: TritonServer) -> set[float]:
    """What concurrent requests are answered; y = factor · 1."""
    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(lambda _: answer(server, "pair"), range(REQUESTS)))


def test_two_instances_share_the_requests_and_each_reports_its_own(server: TritonServer) -> None:
    assert answers(server) == {2}
    wait_until(lambda: stats(server).figures.get("steps", 0) >= REQUESTS)
    assert set(stats(server).processes) == pids(server)
    assert all(figures["steps"] > 0 for figures in stats(server).processes.values())
    first = stats(server).process_beats
    wait_until(lambda: all(n > first[pid] for pid, n in stats(server).process_beats.items()))


def test_reloads_with_a_changed_file_leave_one_pair_of_series(server: TritonServer) -> None:
    graph = server.settings.repository / "pair" / "1" / "model.onnx"
    first = server.pid
    for factor in range(3, 6):
        onnx.save(times(factor), graph)
        server.load("pair")
        assert answers(server) == {factor}
    assert server.pid == first
    wait_until(lambda: len(pids(server)) == 2)
    wait_until(lambda: set(stats(server).processes) == pids(server))
    assert not server.is_missing_stubs, "an instance that a reload ended counts as lost"


def test_reloads_with_a_changed_configuration_leave_triton_alive(server: TritonServer) -> None:
    for reload in range(3):
        config = model_config(server.settings.repository / "pair", VersionPolicy(1))
        config["parameters"]["note"] = {"string_value": str(reload)}
        server._require_control().load("pair", config)
        assert answers(server) == {2}
    assert server.is_alive
    wait_until(lambda: set(stats(server).processes) == pids(server))


def test_one_killed_of_two_is_replaced(server: TritonServer) -> None:
    killed = min(pids(server))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server.is_missing_stubs)
    assert server.heal() == ["pair"]
    assert answers(server) == {2}
    wait_until(lambda: len(pids(server)) == 2)
    wait_until(lambda: set(stats(server).processes) == pids(server))
    assert stats(server).incarnation == 1
    assert server.heal() == [], "the instance that the heal ended counts as lost"
