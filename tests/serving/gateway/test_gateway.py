"""Admission, deadlines, disconnects, draining, keys, probes and metrics."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from inference.errors import DeadlineExceeded, Overloaded, Unavailable
from serving.gateway.requests import health, plan_runner
from serving.gateway.requests.service import INLINE_LIMIT
from serving.liveness.stall_detector import EngineStats
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of
from tests.serving.gateway.http.test_streams import Reader
from tests.serving.triton.tiny import engine_stats
from tests.serving.waiting import Clock, until

BODY = {"texts": "hola"}


async def test_requests_over_the_limit_get_429_at_once(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_requests=2)
    gateway.inference.hold = asyncio.Event()
    first = [asyncio.ensure_future(gateway.http.post("/v1/translate", json=BODY)) for _ in range(2)]
    await until(lambda: gateway.inference.running == 2)
    refused = await gateway.http.post("/v1/translate", json=BODY)
    assert (refused.status_code, error_of(refused)["type"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    gateway.inference.hold.set()
    assert [response.status_code for response in await asyncio.gather(*first)] == [200, 200]
    assert (await gateway.http.post("/v1/translate", json=BODY)).status_code == 200


async def test_only_large_work_runs_in_a_thread(gateway: Gateway) -> None:
    here = threading.get_ident()
    in_pool = gateway.service.in_pool
    assert await in_pool(INLINE_LIMIT, threading.get_ident) == here
    for size in (INLINE_LIMIT + 1, None):
        assert await in_pool(size, threading.get_ident) != here


async def test_long_paragraph_takes_turns(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_sequences=3)
    body = {"texts": "uno. dos. tres. cuatro. cinco. seis. siete"}
    work = await gateway.held("/v1/translate", json=body)
    await until(lambda: gateway.inference.running == 3)
    assert "triptych_queue_size 4.0" in (await gateway.http.get("/metrics")).text
    gateway.inference.hold.set()
    assert (await work).json()["data"][0]["text"] == body["texts"]
    assert gateway.inference.most_running == 3


async def test_embeddings_of_concurrent_requests_share_a_call(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_calls_per_model=1)
    gateway.inference.hold = asyncio.Event()

    async def embed(text: str) -> list[float]:
        response = await gateway.http.post("/v1/embed", json={"texts": text})
        return response.json()["data"][0]["embedding"]

    first = asyncio.ensure_future(embed("a"))
    await until(lambda: gateway.inference.running == 1)
    texts = ["b", "c d", "e", "f g h"]
    others = [asyncio.ensure_future(embed(text)) for text in texts]
    await until(lambda: "triptych_queue_size 4.0" in gateway.exposed)
    gateway.inference.hold.set()
    together = [await first, *await asyncio.gather(*others)]
    assert [call.rows for call in gateway.inference.calls] == [1, 4]
    model = 'model="tiny-zero-shot-text"'
    assert f"triptych_call_rows_count{{{model}}} 2.0" in gateway.exposed
    assert f"triptych_joined_calls_total{{{model}}} 4.0" in gateway.exposed
    alone = make_gateway()
    for text, vector in zip(["a", *texts], together, strict=True):
        response = await alone.http.post("/v1/embed", json={"texts": text})
        assert response.json()["data"][0]["embedding"] == vector


@pytest.mark.parametrize("most", [("_SHORT_CALLS", 7), ("_SHORT_TOKENS", 500)])
async def test_a_short_embedding_passes_many_texts(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch, most: tuple[str, int]
) -> None:
    monkeypatch.setattr(plan_runner, *most)
    gateway = make_gateway(max_calls_per_model=1, max_client_batch_size=64)
    first = await gateway.held("/v1/embed", json={"texts": "a"})
    requests = []
    for texts in [f"{number} " * 9 for number in range(64)], "c d":
        requests.append(
            asyncio.ensure_future(gateway.http.post("/v1/embed", json={"texts": texts}))
        )
        await until(lambda: f"queue_size {7 + len(requests)}.0" in gateway.exposed)
    gateway.inference.hold.set()
    assert {one.status_code for one in [await first, *await asyncio.gather(*requests)]} == {200}
    assert [call.rows for call in gateway.inference.calls] == [1, 1, 64]


async def test_embeddings_do_not_wait_for_turns_of_sequences(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_sequences=1)
    sequence = await gateway.held("/v1/translate", json=BODY)
    embedding = await gateway.held("/v1/embed", json={"texts": "a"})
    gateway.inference.hold.set()
    assert (await sequence).status_code == (await embedding).status_code == 200


async def test_canary_passes_the_queue(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_calls_per_model=1)
    running = await gateway.held("/v1/embed", json={"texts": "a"})
    waiting = asyncio.ensure_future(gateway.http.post("/v1/embed", json={"texts": "b"}))
    canary = gateway.inference.calls[0]
    direct = asyncio.ensure_future(gateway.pool.endpoints[0].perform(canary, 9.0))
    await until(lambda: gateway.inference.running == 2)
    gateway.inference.hold.set()
    await asyncio.gather(running, waiting, direct)
    assert [call.rows for call in gateway.inference.calls] == [1, 1, 1]


async def test_disconnect_ends_the_work(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_requests=1)
    gateway.inference.hold = asyncio.Event()
    async with Reader(gateway, "translate", stream=False).reading() as reader:
        await until(lambda: gateway.inference.running == 1)
    assert gateway.inference.cancelled == 1
    assert reader.sent == []
    gateway.inference.hold = None
    assert (await gateway.http.post("/v1/translate", json=BODY)).status_code == 200
    failures = 'triptych_request_failure_total{route="/v1/translate",type="cancelled"} 1.0'
    assert failures in gateway.exposed


async def test_draining_refuses_new_work_and_is_not_ready(gateway: Gateway) -> None:
    running = await gateway.held("/v1/translate", json=BODY)
    gateway.service.is_draining = True
    refused = await gateway.http.post("/v1/translate", json=BODY)
    assert (refused.status_code, error_of(refused)["type"]) == (503, "unavailable")
    assert refused.headers["retry-after"]
    assert (await gateway.http.get("/ready")).status_code == 503
    assert (await gateway.http.get("/health")).status_code == 200
    gateway.inference.hold.set()
    assert (await running).status_code == 200


class TestReady:
    async def test_when_every_part_answers(self, gateway: Gateway) -> None:
        await gateway.get("/ready")
        assert {call.model for call in gateway.inference.calls} == {
            "tiny-translate", "tiny-caption", "tiny-zero-shot", "tiny-zero-shot-text",
            "tiny-generate",
        }  # fmt: skip
        assert (await gateway.http.get("/v2/health/ready")).status_code == 200
        assert (await gateway.http.get("/v2/health/live")).status_code == 200

    async def test_not_when_a_part_is_not_loaded(self, gateway: Gateway) -> None:
        gateway.inference.unloaded.add("tiny-zero-shot-text")
        response = await gateway.get("/ready", status=503)
        assert "tiny-zero-shot-text" in error_of(response)["message"]
        assert (await gateway.http.get("/v2/health/ready")).status_code == 503

    async def test_busy_is_not_dead(self, gateway: Gateway) -> None:
        gateway.inference.failures["tiny-caption"] = Overloaded("queue full")
        assert (await gateway.http.get("/ready")).status_code == 200

    async def test_no_canary_while_there_is_traffic(self, gateway: Gateway) -> None:
        await gateway.http.post("/v1/translate", json=BODY)
        gateway.inference.calls.clear()
        assert (await gateway.http.get("/ready")).status_code == 200
        assert "tiny-translate" not in {call.model for call in gateway.inference.calls}
        assert "tiny-caption" in {call.model for call in gateway.inference.calls}

    @pytest.mark.parametrize("failure", [Unavailable("down"), DeadlineExceeded("late")])
    async def test_not_after_a_model_died(
        self, gateway: Gateway, failure: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (await gateway.http.get("/ready")).status_code == 200
        monkeypatch.setattr(health, "FRESH_S", 0.0)
        gateway.inference.failures["tiny-caption"] = failure
        assert (await gateway.http.get("/ready")).status_code == 503

    async def test_not_while_a_heartbeat_stalls(self, gateway: Gateway) -> None:
        clock, engines = Clock(1e12), {"tiny-caption": engine_stats(1)}
        readiness = gateway.checked(Stats(engines), clock, keep_s=0)
        assert await readiness.problem() is None
        clock.now_s += health.FRESH_S + 1
        assert await readiness.problem() == "tiny-caption has had no heartbeat for 11 s"
        engines["tiny-caption"] = engine_stats(2)
        assert await readiness.problem() is None

    async def test_busy_engine_with_a_heartbeat_needs_no_canary(self, gateway: Gateway) -> None:
        clock, engines = Clock(1e12), {}
        readiness = gateway.checked(Stats(engines), clock, keep_s=0)
        gateway.inference.failures["tiny-caption"] = DeadlineExceeded("hours of work before it")
        for beats in range(5):
            engines["tiny-caption"] = engine_stats(beats, rows=64)
            assert await readiness.problem() is None
            clock.now_s += health.FRESH_S - 1
        assert "tiny-caption" not in {call.model for call in gateway.inference.calls}
        engines["tiny-caption"] = engine_stats(9, rows=0)
        assert "did not answer a canary" in (await readiness.problem() or "")

    async def test_not_when_one_of_two_processes_hangs(self, gateway: Gateway) -> None:
        clock, engines = Clock(1e12), {}
        readiness = gateway.checked(Stats(engines), clock, keep_s=0)
        for beats in (1, 2):
            engines["tiny-caption"] = EngineStats(0, {7: {"beats": beats}, 8: {"beats": 1}})
            problem = await readiness.problem()
            clock.now_s += health.FRESH_S + 1
        assert problem == "tiny-caption has had no heartbeat for 11 s"

    async def test_when_a_process_of_another_version_hangs_or_is_dead(
        self, gateway: Gateway
    ) -> None:
        clock, engines = Clock(1e12), {}
        readiness = gateway.checked(Stats(engines), clock, keep_s=0)
        versions = {7: 2, 8: 3}
        for beats in (1, 2):
            figures = {7: {"beats": 1, "rows_in_use": 4}, 8: {"beats": beats}}
            engines["tiny-caption"] = EngineStats(0, figures, versions)
            problem = await readiness.problem()
            clock.now_s += health.FRESH_S + 1
        assert problem is None
        engines["tiny-caption"] = EngineStats(0, {**figures, 8: {"beats": 3}}, versions)
        gateway.inference.failures["tiny-caption"] = Unavailable("down")
        assert "canary" in (await readiness.problem() or ""), "the dead one counts as busy"

    async def test_new_incarnation_resets_the_stall_detector(self, gateway: Gateway) -> None:
        clock, engines = Clock(1e12), {"tiny-caption": engine_stats(7)}
        readiness = gateway.checked(Stats(engines), clock, keep_s=0)
        await readiness.problem()
        clock.now_s += health.FRESH_S + 1
        engines["tiny-caption"] = EngineStats(1, engine_stats(7).processes)
        assert await readiness.problem() is None


async def test_head_of_a_probe_has_its_status(gateway: Gateway) -> None:
    for path in ("/health", "/ready"):
        assert (await gateway.http.head(path)).status_code == 200
    gateway.service.is_draining = True
    assert (await gateway.http.head("/ready")).status_code == 503


async def test_probes_are_logged_only_when_they_fail(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    for path in ("/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"):
        assert (await gateway.http.get(path)).status_code == 200
    gateway.service.is_draining = True
    assert (await gateway.http.get("/ready")).status_code == 503
    assert "answered" not in caplog.messages
    assert caplog.messages.count("ready") == 1, "it has changed"
    monkeypatch.setattr(gateway.service.metrics, "exposition", lambda: 1 / 0)
    assert (await gateway.http.get("/metrics")).status_code == 500
    assert caplog.messages.count("answered") == 1


class TestKey:
    @pytest.mark.parametrize(
        "authorization",
        [None, "", "Bearer", "Bearer wrong", "sesame", "Basic sesame", "Bearer sésame"],
    )
    async def test_missing_or_wrong_is_401(
        self, make_gateway: MakeGateway, authorization: str | None
    ) -> None:
        gateway = make_gateway(api_key="sesame")
        headers = {} if authorization is None else {"authorization": authorization.encode()}
        for response in (
            await gateway.http.post("/v1/translate", json=BODY, headers=headers),
            await gateway.http.get("/v1/models", headers=headers),
        ):
            assert (response.status_code, error_of(response)["type"]) == (401, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"
        response = await gateway.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert gateway.inference.calls == []

    async def test_key_is_not_shown_in_settings(self, make_gateway: MakeGateway) -> None:
        assert "sesame" not in repr(make_gateway(api_key="sesame").settings)


async def test_browsers_may_call_from_allowed_origins_only(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(cors_allow_origin="https://a.example, https://b.example")
    headers = {"origin": "https://b.example", "access-control-request-method": "POST"}
    allowed = await gateway.http.options("/v1/translate", headers=headers)
    assert allowed.headers["access-control-allow-origin"] == "https://b.example"
    headers["origin"] = "https://c.example"
    refused = await gateway.http.options("/v1/translate", headers=headers)
    assert "access-control-allow-origin" not in refused.headers


async def test_metrics_count_by_route_and_error(gateway: Gateway) -> None:
    await gateway.http.post("/v1/translate", json=BODY)
    await gateway.http.post("/v1/translate", json={"texts": ""})
    await gateway.http.get("/nothing/private-word")
    text = (await gateway.http.get("/metrics")).text
    samples = gateway.samples
    route = ("route", "/v1/translate")
    assert samples["triptych_request_count_total", route] == 2
    assert samples["triptych_request_success_total", route] == 1
    assert samples["triptych_request_failure_total", route, ("type", "invalid_request")] == 1
    for name in ("tokenization_", "queue_", "inference_"):
        assert samples[f"triptych_request_{name}duration_seconds_count", route] == 1
    assert samples["triptych_request_duration_seconds_count", route] == 2
    assert samples["triptych_request_count_total", ("route", "unmatched")] == 1
    assert "private-word" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_one_log_line_a_request_without_the_users_text(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    body = {"texts": "secreto", "num_beams": 1, "stream": stream}
    with caplog.at_level("INFO", logger="serving"):
        await gateway.post("/v1/translate", json=body)
    (record,) = [record for record in caplog.records if record.name.startswith("serving")]
    assert (record.status, record.route) == (200, "/v1/translate")
    assert "secreto" not in str(vars(record))


class Stats:
    """Counts its readings; they wait while `hold` is clear."""

    def __init__(self, engines: dict[str, EngineStats] | None = None) -> None:
        self.engines = {} if engines is None else engines
        self.readings = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self) -> dict[str, EngineStats]:
        self.readings += 1
        await self.hold.wait()
        return dict(self.engines)


async def test_callers_at_one_moment_share_a_check(gateway: Gateway) -> None:
    stats, clock = Stats(), Clock()
    readiness = gateway.checked(stats, clock)
    stats.hold.clear()
    callers = [asyncio.create_task(readiness.problem()) for _ in range(50)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    stats.hold.set()
    assert await asyncio.gather(*callers[1:]) == [None] * 49
    assert stats.readings == 1


async def test_result_is_kept_for_a_second(gateway: Gateway) -> None:
    stats, clock = Stats(), Clock()
    readiness = gateway.checked(stats, clock)
    gateway.inference.unloaded.add("tiny-caption")
    for now_s, readings in ((0.0, 1), (0.9, 1), (1.0, 2), (1.5, 2), (2.0, 3)):
        clock.now_s = now_s
        assert "tiny-caption" in (await readiness.problem() or "")
        assert stats.readings == readings
    gateway.service.is_draining = True
    assert "shutting down" in (await readiness.problem() or ""), "known at once"


async def test_failed_check_is_made_again(gateway: Gateway) -> None:
    async def broken() -> dict[str, EngineStats]:
        raise RuntimeError("broken")

    readiness = gateway.checked(broken, keep_s=0)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await readiness.problem()


async def test_reason_for_having_no_model_is_given() -> None:
    gateway = Gateway([])
    reasons: list[str | None] = [None, "user 10001 cannot read /models"]
    readiness = gateway.checked(explain=lambda: reasons[0])
    assert await readiness.problem() == "no model is served: run `triptych export`"
    reasons.pop(0)
    assert await readiness.problem() == "no model is served: user 10001 cannot read /models"


async def test_readiness_is_logged_when_it_changes(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="serving.gateway.requests.health")
    readiness = gateway.checked(keep_s=0)
    gateway.inference.unloaded.add("tiny-caption")
    for _ in range(3):
        await readiness.problem()
    gateway.inference.unloaded.clear()
    for _ in range(3):
        await readiness.problem()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["not ready: tiny-caption version 3 is not loaded", "ready"]


@pytest.mark.parametrize("path", ["/ready", "/v2/health/ready"])
async def test_probe_that_waits_for_readiness_is_no_noise(
    gateway: Gateway, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="serving.gateway.observability.metrics")
    gateway.inference.unloaded.add("tiny-caption")
    assert (await gateway.http.get(path)).status_code == 503
    answered = [record for record in caplog.records if record.getMessage() == "answered"]
    assert [record.levelname for record in answered] == ["DEBUG"]
