"""The load generator against a server of known behaviour, and loops without a model."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import engine_loop
from benchmarks.engine_loop import SEARCHES, time_steps
from benchmarks.harness.closed_loop import poisson_arrivals
from benchmarks.load.__main__ import served_routes
from benchmarks.load.payloads import DEFAULT_TASKS, OTHERS, LoadSettings, Payloads, failure
from benchmarks.long_contexts import REPLY, TURN, TURNS, tokens_of, turns
from inference.generation import TokenChunk
from serving.gateway.dialects import huggingface, libretranslate, openai
from tests.clients.fake_gateway import fake_gateway
from tests.collector import serving
from tests.programs import run_program
from triptych.tasks import TASKS


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_all_rows_run_in_every_step(search: dict[str, Any]) -> None:
    assert time_steps(3, 5, search) > 0


def test_a_sequence_that_ends_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loop, "END", 999)
    monkeypatch.setattr(engine_loop, "VOCABULARY", 1000)
    real = engine_loop.Candidates

    def ending(token_ids: Any, log_probs: Any) -> Any:
        return real(token_ids * 0 + 999, log_probs)

    monkeypatch.setattr(engine_loop, "Candidates", ending)
    with pytest.raises(RuntimeError, match="a sequence ended"):
        time_steps(1, 5, {})


def test_table_has_a_row_for_each_search() -> None:
    app = typer.Typer()
    app.command()(engine_loop.main)
    result = CliRunner().invoke(app, ["--steps", "3", "--sequences", "1", "2", "3"])
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[1:]] == list(SEARCHES)
    assert "1 / 2 / 3 sequences" in rows[0]


class Echo:
    """Takes as many seconds as a prompt has tokens."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def first_token_s(self, prompt: Sequence[int]) -> tuple[float, list[int]]:
        self.prompts.append(list(prompt))
        return float(len(prompt)), [7] * REPLY


def test_each_turn_has_the_earlier_ones_and_their_answers_before_it() -> None:
    model: Any = Echo()
    found = turns(model, np.random.default_rng(0))
    alone, whole = model.prompts[::2], model.prompts[1::2]
    assert found == [1 + turn * (TURN + REPLY) / TURN for turn in range(TURNS)]
    assert {len(each) for each in alone} == {TURN}
    for before, after in pairwise(whole):
        assert after[: len(before) + REPLY] == [*before, *[7] * REPLY]
    assert len(whole[-1]) + REPLY <= 1024  # GPT-2's context


def test_tokens_are_counted_whether_they_come_alone_or_together() -> None:
    assert tokens_of([TokenChunk((1,)), TokenChunk((2, 3)), object()]) == 3


MESSAGES = (
    *(route.body for route in openai.ROUTES),
    *huggingface.MESSAGES,
    *libretranslate.MESSAGES,
)
BODIES = {
    "openai/completions": "CompletionRequest",
    "openai/chat": "ChatCompletionRequest",
    "openai/embeddings": "EmbeddingRequest",
    "hf/answer": "QuestionAnsweringBody",
    "hf/translate": "TranslationBody",
    "hf/caption": "ImageToTextBody",
    "hf/classify": "ClassificationBody",
    "hf/detect": "DetectionBody",
    "hf/embed": "FeaturesBody",
    "hf/fill-mask": "FillMaskBody",
    "hf/generate": "GenerationBody",
    "hf/tag": "TokenClassificationBody",
    "hf/zero-shot": "ZeroShotBody",
    "libretranslate/translate": "TranslateBody",
    "libretranslate/html": "TranslateBody",
    "libretranslate/detect": "DetectBody",
}
"""Route → its message."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def images(tmp_path: Path) -> Path:
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


def test_a_seed_fixes_arrivals_and_payloads(images: Path) -> None:
    one, two = (list(itertools.islice(poisson_arrivals(5, seed=3), 9)) for _ in range(2))
    assert one == two
    draws = [
        [payloads.draw() for _ in range(20)]
        for payloads in (Payloads(("translate", "caption"), 3, images) for _ in range(2))
    ]
    assert draws[0] == draws[1]
    assert {payload.route for payload in draws[0]} == {"translate", "caption"}


def test_bodies_hold_the_examples(images: Path) -> None:
    payloads = Payloads(("translate", "caption", "zero-shot"), 0, images)
    texts = {json.loads(payloads.draw("translate").body)["texts"][0] for _ in range(50)}
    assert len(texts) > 30, "drawn from many sentences"
    assert all(texts)
    assert all(json.loads(payloads.draw("translate").body)["source"] == "es" for _ in range(5))
    zero_shot = payloads.draw("zero-shot")
    assert zero_shot.path == "/v1/zero-shot"
    assert json.loads(zero_shot.body)["images"] == ["cG5n"]
    assert len(json.loads(zero_shot.body)["labels"]) == 12


def test_every_task_has_a_valid_sample(images: Path) -> None:
    """So `make load` covers each of them."""
    assert set(DEFAULT_TASKS) == set(TASKS)
    payloads = Payloads(DEFAULT_TASKS, 0, images)
    for name, task in TASKS.items():
        task.request.model_validate_json(payloads.draw(name).body)


def test_tasks_whose_default_is_short_or_missing_name_a_model(images: Path) -> None:
    payloads = Payloads(("embed", "score", "tag"), 0, images, {"embed": "long", "score": "es-en"})
    named = {
        name: json.loads(payloads.draw(name).body).get("model")
        for name in ("embed", "score", "tag")
    }
    assert named == {"embed": "long", "score": "es-en", "tag": None}


def test_tasks_are_those_that_the_gateway_serves() -> None:
    with fake_gateway() as url:
        assert served_routes(url, DEFAULT_TASKS) == {"translate": ""}
        assert served_routes(url, ("hf/translate", "openai/chat")) == {"hf/translate": "opus"}
    with serving(_Holding()) as url:  # lists no models
        assert tuple(served_routes(url, DEFAULT_TASKS)) == DEFAULT_TASKS


def test_every_route_of_the_other_apis_has_a_valid_body(images: Path) -> None:
    """Those of LibreTranslate are of several tasks' requests: its own message checks them."""
    others = list(OTHERS)
    payloads = Payloads(others, 0, images, dict.fromkeys(others, "a-model"))
    bodies = {message.__name__: message for message in MESSAGES}
    for name in others:
        payload = payloads.draw(name)
        assert "{" not in payload.path
        body = bodies[BODIES[name]].model_validate_json(payload.body)
        assert getattr(body, "model", "a-model") == "a-model"


def test_missing_images_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="images"):
        Payloads(("caption",), 0, tmp_path)


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (200, b"[]", "not a response of Triptych"),
        (200, b'{"data": [{"index": 0, "text": "a"}]}', None),
        (200, b'{"data": [{"index": 0, "error": {"type": "too_long"}}]}', "item: too_long"),
        (200, b"<html>", "not a response of Triptych"),
        (429, b"{}", "HTTP 429"),
    ],
)
def test_only_complete_responses_count(status: int, content: bytes, reason: str | None) -> None:
    assert failure("translate", status, content) == reason


@pytest.mark.parametrize(
    "wrong", [{"PROFILE": "open"}, {"TASKS": "translat"}, {"USERS": "0"}, {"RATE": "0"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoadSettings.from_environment(wrong)


class _Holding(ThreadingHTTPServer):
    """Responds once `held` requests are in flight."""

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


def load(url: str, images: Path, **environment: str) -> dict[str, Any]:
    """Locust's statistics of a run with translations only."""
    settings = {"TRIPTYCH_URL": url, "TASKS": "translate", "IMAGES": str(images)}
    command = (sys.executable, "-m", "benchmarks.load", "--json")
    printed = run_program(*command, cwd=ROOT, env={**os.environ, **settings, **environment})
    (statistics,) = json.loads(printed)
    return dict(statistics)


@pytest.mark.integration
def test_open_loop_sends_while_no_response_arrives(images: Path) -> None:
    with serving(server := _Holding(held=12)) as url:
        total = load(url, images, PROFILE="poisson", RATE="50", DURATION="4s")
    assert server.most_in_flight >= 12
    assert total["num_requests"] == server.asked
    assert total["num_failures"] == 0
    assert total["max_response_time"] > 100, "early requests waited for later ones"


@pytest.mark.integration
def test_closed_loop_users_wait_for_responses(images: Path) -> None:
    with serving(server := _Holding()) as url:
        total = load(url, images, PROFILE="closed", USERS="2", DURATION="3s")
    assert total["num_requests"] == server.asked >= 2
    assert total["num_failures"] == 0
    assert 1 <= server.most_in_flight <= 2
