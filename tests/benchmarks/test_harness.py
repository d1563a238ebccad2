"""The harness: loops, processes, rounds, systems."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.closed_loop import (
    Answered,
    closed_loop,
    count_answers,
    http_loop,
    interleave,
)
from benchmarks.harness.machine import part_of
from benchmarks.harness.system import System, start_systems
from tests.collector import handled_by


def load(system: System, model: str, cache: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What echoes; prints, as libraries do, which must not mix with the answers."""

    def run(work: dict[str, Any]) -> dict[str, Any]:
        print("a library's message")
        if work["value"] == "fail":
            raise ValueError("cannot echo")
        return {"value": work["value"], "model": model, "system": system.label}

    return run


def test_closed_loop_keeps_a_fixed_number_in_flight() -> None:
    gathered = threading.Barrier(3)

    def ask(text: str) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            gathered.wait(timeout=5)
        gathered.abort()
        return len(text)

    loop = closed_loop(ask, itertools.repeat("four"), 3, counted_s=0.01, fill_s=0.0)
    assert loop.tokens_per_second == pytest.approx(4 * loop.requests_per_second)
    assert loop.cpu_ms["client"] >= 0


def test_only_what_was_done_within_the_time_is_counted() -> None:
    before, across, within = (
        Answered(0.0, 1.0, 32),
        Answered(1.0, 3.0, 32),
        Answered(2.5, 3.5, 32),
    )
    loop = count_answers([before, across, within], 2.0, 4.0, {"gateway": 0.3})
    assert loop.requests_per_second == pytest.approx(1.5 / 2)
    assert loop.tokens_per_second == pytest.approx(48 / 2)
    assert loop.latencies_ms == (2000.0, 1000.0)
    assert loop.cpu_ms == {"gateway": pytest.approx(200.0)}


def test_loop_in_which_no_request_ran_has_no_throughput() -> None:
    loop = count_answers([], 2.0, 4.0, {"gateway": 0.0})
    assert (loop.requests_per_second, loop.latencies_ms) == (0.0, ())
    assert loop.cpu_ms == {"gateway": 0.0}


class Echo(BaseHTTPRequestHandler):
    """Responds with the body, in two parts; `bad` is refused."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(400 if body == b"bad" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        for part in (body[:1], body[1:]):
            self.wfile.write(part)
            self.wfile.flush()

    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword.lower(), value)


@pytest.fixture
def address() -> Iterator[str]:
    with handled_by(Echo) as url:
        yield url.removeprefix("http://")


def test_each_response_is_counted_once(address: str) -> None:
    bodies = itertools.cycle([b"four", b"three"])
    sizes: list[int] = []

    def tokens(body: bytes) -> int:
        assert body in (b"four", b"three")
        sizes.append(len(body))
        return 7

    loop = http_loop(address, "/", bodies, tokens, 3, counted_s=0.05, fill_s=0.01)
    assert loop.tokens_per_second == pytest.approx(7 * loop.requests_per_second)
    assert len(loop.latencies_ms) <= len(sizes)
    assert loop.requests_per_second > 0
    assert loop.cpu_ms["client"] >= 0


def test_refused_request_ends_the_loop(address: str) -> None:
    with pytest.raises(RuntimeError, match="400 Bad Request"):
        http_loop(address, "/", itertools.repeat(b"bad"), len, 1, counted_s=0.05, fill_s=0.01)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("/x/triton_python_backend_stub", "repository/m/1/model.py"), "engine"),
        (("/x/bin/tritonserver", "--model-repository=gateway"), "triton"),
        (("python", "-m", "triptych", "gateway", "--repository", "r"), "gateway"),
        (("python", "-m", "triptych", "triton"), "supervisor"),
        ((), "other"),
    ],
)
def test_processes_are_identified_by_their_arguments(arguments: tuple[str, ...], part: str) -> None:
    assert part_of(arguments) == part


def test_every_round_has_every_system_once_in_changing_order() -> None:
    turns = list(interleave("abc", rounds=8, rest_s=0.0))
    assert [number for number, _ in turns] == [number for number in range(8) for _ in "abc"]
    orders = ["".join(s for n, s in turns if n == number) for number in range(8)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 1
    assert turns == list(interleave("abc", rounds=8, rest_s=0.0))


def test_systems_answer_with_cpu_time_and_memory_and_end(tmp_path: Path) -> None:
    systems = (System("echo", "fp32"), System("echo", "fp32", threads=1))
    with start_systems(__name__, systems, "m", tmp_path / "cache") as processes:
        for system in systems:
            found = processes[system].run({"value": 3})
            assert (found["value"], found["model"], found["system"]) == (3, "m", system.label)
            assert found["cpu_seconds"] >= 0
            assert found["peak_bytes"] > 2**20
    assert systems[1].label == "echo fp32, 1 thread"


def test_worker_that_ends_names_its_log(tmp_path: Path) -> None:
    systems = [System("echo", "fp32")]
    with (
        start_systems(__name__, systems, "m", tmp_path) as processes,
        pytest.raises(RuntimeError, match=r"benchmarks-m-echo-fp32\.log"),
    ):
        processes[systems[0]].run({"value": "fail"})
    assert "cannot echo" in (tmp_path / "benchmarks-m-echo-fp32.log").read_text()
