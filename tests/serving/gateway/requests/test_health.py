"""Callers of `/ready` share one check a second."""

import asyncio
import logging

import pytest

from serving.liveness.stall_detector import EngineStats
from tests.serving.gateway.conftest import Gateway
from tests.serving.waiting import Clock


class Stats:
    """Counts its readings; they wait while `hold` is clear."""

    def __init__(self) -> None:
        self.readings = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self) -> dict[str, EngineStats]:
        self.readings += 1
        await self.hold.wait()
        return {}


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
