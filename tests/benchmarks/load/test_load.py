"""The load generator measures what it says, tried on a server of known speed."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.arrivals import poisson_arrivals
from benchmarks.load.payloads import Payloads, failure
from benchmarks.load.settings import LoadSettings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(b"png")
    return tmp_path


def test_gaps_are_exponential() -> None:
    times = list(itertools.islice(poisson_arrivals(rate=50, seed=1), 20_000))
    gaps = [after - before for before, after in itertools.pairwise([0.0, *times])]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    # Of an exponential distribution the deviation is the mean, and 1/e of it lies above the mean.
    assert statistics.pstdev(gaps) == pytest.approx(1 / 50, rel=0.05)
    above = sum(gap > 1 / 50 for gap in gaps) / len(gaps)
    assert above == pytest.approx(0.3679, abs=0.02)


def test_a_seed_fixes_arrivals_and_payloads(pictures: Path) -> None:
    one, two = (list(itertools.islice(poisson_arrivals(5, seed=3), 9)) for _ in range(2))
    assert one == two
    draws = [
        [payloads.draw() for _ in range(20)]
        for payloads in (Payloads(("translate", "caption"), 3, pictures) for _ in range(2))
    ]
    assert draws[0] == draws[1]
    assert {payload.task for payload in draws[0]} == {"translate", "caption"}


def test_bodies_hold_the_examples(pictures: Path) -> None:
    payloads = Payloads(("translate", "caption", "zero-shot"), 0, pictures)
    texts = {json.loads(payloads.draw("translate").body)["texts"][0] for _ in range(50)}
    assert len(texts) > 30, "drawn from many sentences"
    assert all(texts)
    zero_shot = payloads.draw("zero-shot")
    assert zero_shot.path == "/v1/zero-shot"
    assert json.loads(zero_shot.body)["images"] == ["cG5n"]
    assert len(json.loads(zero_shot.body)["labels"]) == 12


def test_material_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pictures"):
        Payloads(("caption",), 0, tmp_path)


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (200, b'{"data": [{"index": 0, "text": "a"}]}', None),
        (200, b'{"data": [{"index": 0, "error": {"type": "too_long"}}]}', "item: too_long"),
        (200, b"<html>", "not an answer of Triptych"),
        (429, b"{}", "HTTP 429"),
    ],
)
def test_only_whole_answers_count(status: int, content: bytes, reason: str | None) -> None:
    assert failure(status, content) == reason


@pytest.mark.parametrize(
    "wrong", [{"PROFILE": "open"}, {"TASKS": "translat"}, {"USERS": "0"}, {"RATE": "0"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoadSettings.from_environment(wrong)


class _Holding(ThreadingHTTPServer):
    """Answers nobody before `held` requests are there at once."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, held: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = self.most_in_flight = self._in_flight = 0
        self._held = held
        self._changed = threading.Condition()

    def wait(self) -> None:
        with self._changed:
            self.asked += 1
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most_in_flight >= self._held, timeout=30)
            self._in_flight -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Holding

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.wait()
        payload = b'{"data": [{"index": 0}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(server: _Holding) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def load(url: str, pictures: Path, **environment: str) -> dict[str, Any]:
    """Locust's statistics of a run that asks for translations only."""
    settings = {"TRIPTYCH_URL": url, "TASKS": "translate", "PICTURES": str(pictures)}
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", "--json"],
        cwd=ROOT,
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (statistics,) = json.loads(result.stdout)
    return dict(statistics)


@pytest.mark.integration
def test_an_open_source_sends_on_while_nobody_is_answered(pictures: Path) -> None:
    with serving(server := _Holding(held=12)) as url:
        total = load(url, pictures, PROFILE="poisson", RATE="50", DURATION="4s")
    assert server.most_in_flight >= 12
    assert total["num_requests"] == server.asked
    assert total["num_failures"] == 0
    assert total["max_response_time"] > 100, "who came early waited for those who came later"


@pytest.mark.integration
def test_closed_users_wait_for_their_answers(pictures: Path) -> None:
    with serving(server := _Holding()) as url:
        total = load(url, pictures, PROFILE="closed", USERS="2", DURATION="3s")
    assert total["num_requests"] == server.asked >= 2
    assert total["num_failures"] == 0
    assert 1 <= server.most_in_flight <= 2
