"""Limits by key hold over several gateways that share a store, and over each without it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from redis.asyncio import Redis

from inference.errors import Overloaded
from serving.gateway.admission import redis_counts
from serving.gateway.admission.admission import FREE_BYTES, Admission, LocalCounts, Usage
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.admission.redis_counts import PREFIX, RedisCounts
from serving.gateway.observability.metrics import Metrics

ALICE = ApiKey(
    name="alice",
    sha256="0" * 64,
    max_concurrent_requests=2,
    max_concurrent_tokens=10,
    max_concurrent_pixels=20,
    max_concurrent_bytes=30,
)
PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
MOST = {f"max_{name}": 1000 for name in ("requests", "tokens", "pixels", "bytes", "sequences")}

Connect = Callable[[], Redis]


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture(
    params=[
        "in process",
        pytest.param(
            "a real server",
            marks=pytest.mark.skipif(
                PROGRAM is None, reason="no valkey-server or redis-server (apt-get install either)"
            ),
        ),
    ]
)
def connect(request: pytest.FixtureRequest, fake: FakeServer, tmp_path: Path) -> Iterator[Connect]:
    """Makes connections to one server."""
    if request.param == "in process":
        yield lambda: FakeRedis(server=fake, decode_responses=True)
        return
    assert PROGRAM is not None
    socket = tmp_path / "socket"
    flags = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen([PROGRAM, *flags], stdout=subprocess.PIPE, text=True) as server:
        while "ready to accept connections" not in (line := server.stdout.readline().lower()):
            assert line, "it has ended"
        yield lambda: Redis.from_url(f"unix://{socket}", decode_responses=True)
        server.terminate()


class Gateway:
    """The admission of a gateway, and the task that exchanges its counts."""

    def __init__(self, server: Redis) -> None:
        self.metrics = Metrics()
        self.inner = LocalCounts()
        self.counts = RedisCounts(server, "store:6379", self.inner, self.metrics)
        self.admission = Admission(**MOST, counts=self.counts)
        self.task = asyncio.create_task(self.counts.run())

    @contextlib.asynccontextmanager
    async def request(self, tokens: int = 0, pixels: int = 0) -> AsyncIterator[None]:
        """A request as `Execution` admits it."""
        admission = self.admission
        with admission.request(), admission.pixels() as reserve:
            await admission.agree("requests", "bytes")
            if pixels:
                reserve(pixels)
                await admission.agree("pixels")
            with admission.reserve_tokens(tokens):
                await admission.agree("tokens")
                yield

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def is_up(self) -> bool:
        return b'triptych_limits_store_up{store="store:6379"} 1.0' in self.metrics.exposition()


@contextlib.asynccontextmanager
async def gateways(*servers: Redis) -> AsyncIterator[list[Gateway]]:
    """Started ones, each with its connection."""
    started = [Gateway(server) for server in servers]
    try:
        for gateway in started:
            await gateway.counts.exchange()
        yield started
    finally:
        for gateway in started:
            await gateway.stop()


async def published(server: Redis, name: str, requests: int) -> None:
    """Wait until the fields of a key count so many requests."""
    async with asyncio.timeout(5):
        while (
            sum('"requests": 1' in text for text in await server.hvals(PREFIX + name)) != requests
        ):
            await asyncio.sleep(0.001)


SetTimes = Callable[..., None]


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> SetTimes:
    """Sets seconds of the module by their names."""

    def set_each(**times_s: float) -> None:
        for name, seconds in times_s.items():
            monkeypatch.setattr(redis_counts, name, seconds)

    return set_each


async def test_requests_of_a_key_are_limited_over_all_gateways(connect: Connect) -> None:
    KEY.set(ALICE)
    server = connect()
    async with gateways(connect(), connect()) as (one, two):
        async with one.request(), two.request():
            for each in (one, two):
                with pytest.raises(Overloaded, match="with this key"):
                    await each.request().__aenter__()
            KEY.set(ALICE.model_copy(update={"name": "bob"}))
            async with one.request(), two.request():
                pass
            KEY.set(ALICE)
        await published(server, "alice", 0)
        async with two.request(), two.request():
            pass
    await server.aclose()


async def test_tokens_pixels_and_bytes_are_too(connect: Connect, set_times: SetTimes) -> None:
    KEY.set(ALICE)
    set_times(_FRESH_S=0.0)  # nothing is refused before it is counted
    async with gateways(connect(), connect()) as (one, two):
        async with one.request(tokens=6, pixels=12):
            with pytest.raises(Overloaded, match="11 tokens with this key"):
                await two.request(tokens=5).__aenter__()
            with pytest.raises(Overloaded, match="21 pixels with this key"):
                await two.request(pixels=9).__aenter__()
            async with two.request(tokens=4, pixels=8):
                pass
        with one.admission.body() as reserve, two.admission.body() as other:
            reserve(FREE_BYTES + 16)
            async with one.request():
                other(FREE_BYTES + 15)
                with pytest.raises(Overloaded, match="31 bytes with this key"):
                    await two.request().__aenter__()
                other(FREE_BYTES + 14)
                async with two.request():
                    pass


async def test_of_requests_at_the_same_moment_exactly_the_limit_is_admitted(
    connect: Connect,
) -> None:
    KEY.set(ALICE)
    release, outcomes = asyncio.Event(), []

    async def serve(gateway: Gateway) -> None:
        try:
            async with gateway.request():
                outcomes.append(True)
                await release.wait()
        except Overloaded:
            outcomes.append(False)

    async with gateways(*(connect() for _ in range(4))) as started, asyncio.timeout(10):
        serving = [asyncio.create_task(serve(gateway)) for gateway in started]
        while len(outcomes) < len(started):
            await asyncio.sleep(0.001)
        release.set()
        await asyncio.gather(*serving)
    assert sorted(outcomes) == [False, False, True, True]


async def test_what_a_killed_gateway_had_admitted_is_free_after_its_lease(
    connect: Connect, set_times: SetTimes
) -> None:
    KEY.set(ALICE)
    set_times(LEASE_S=0.3)
    async with gateways(connect(), connect()) as (one, two), one.request(), one.request():
        one.task.cancel()  # it does not renew its lease any more
        with pytest.raises(Overloaded):
            await two.request().__aenter__()
        async with asyncio.timeout(5):
            while (await two.counts.of_key_everywhere("alice")).requests:
                await asyncio.sleep(0.01)
        async with two.request(), two.request():
            pass


async def test_leases_are_renewed_while_requests_run(connect: Connect, set_times: SetTimes) -> None:
    KEY.set(ALICE)
    set_times(LEASE_S=0.3, BEAT_S=0.05)
    async with gateways(connect(), connect()) as (one, two), one.request(), one.request():
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 3 * redis_counts.LEASE_S
        while loop.time() < until_s:
            assert (await two.counts.of_key_everywhere("alice")).requests == 2
            await asyncio.sleep(0.01)


async def test_a_store_that_lost_its_data_has_it_again(
    connect: Connect, set_times: SetTimes
) -> None:
    KEY.set(ALICE)
    set_times(BEAT_S=0.05)
    server = connect()
    async with gateways(connect()) as (one,), one.request():
        await server.flushall()
        await published(server, "alice", 1)
    await server.aclose()


async def test_without_the_store_limits_hold_for_each_gateway_alone(
    fake: FakeServer, set_times: SetTimes, caplog: pytest.LogCaptureFixture
) -> None:
    KEY.set(ALICE)
    caplog.set_level(logging.INFO)
    set_times(BEAT_S=0.05)
    servers = [FakeRedis(server=fake, decode_responses=True) for _ in range(2)]
    async with gateways(*servers) as (one, two), one.request():
        assert one.is_up
        fake.connected = False
        async with two.request(), two.request(), one.request():
            assert not two.is_up
            for each in (one, two):
                with pytest.raises(Overloaded, match="with this key"):
                    await each.request().__aenter__()
            lines = [each.message for each in caplog.records if each.levelno == logging.ERROR]
            assert len(lines) == 2
            assert "limits by key hold for each gateway alone" in lines[0]
            fake.connected = True
            async with asyncio.timeout(5):
                while (await two.counts.of_key_everywhere("alice")).requests < 4:
                    await asyncio.sleep(0.01)  # what ran meanwhile is counted
        assert one.is_up
        assert two.is_up


async def test_a_store_that_hangs_delays_requests_once(
    monkeypatch: pytest.MonkeyPatch, set_times: SetTimes
) -> None:
    KEY.set(ALICE)
    set_times(TIMEOUT_S=0.05)
    hanging = FakeRedis(decode_responses=True)
    async with gateways(hanging) as (one,):
        called = 0

        async def hang(*_: object, **__: object) -> None:
            nonlocal called
            called += 1
            await asyncio.Event().wait()

        monkeypatch.setattr(redis_counts.RedisCounts, "_exchange_fields", hang)
        async with asyncio.timeout(5), one.request():
            assert called == 1
            async with one.request():
                assert called == 1
        assert not one.is_up


async def test_a_key_without_limits_is_not_published(connect: Connect) -> None:
    KEY.set(ApiKey(name="carol", sha256="1" * 64))
    server = connect()
    async with gateways(connect()) as (one,), one.request(tokens=3):
        assert await server.keys("*") == []
    await server.aclose()


async def test_fields_of_processes_that_ended_long_ago_are_removed(
    connect: Connect, set_times: SetTimes
) -> None:
    KEY.set(ALICE)
    set_times(LEASE_S=0.01, _FORGET_S=0.01, BEAT_S=0.02)
    server = connect()
    async with gateways(connect()) as (one,):
        await server.hset(PREFIX + "alice", "gone", '{"until_s": 1.0, "requests": 1}')
        async with one.request():
            async with asyncio.timeout(5):
                while await server.hexists(PREFIX + "alice", "gone"):
                    await asyncio.sleep(0.005)
    await server.aclose()


LEASED = {"until_s": 1e12, "requests": 1}


@pytest.mark.parametrize(
    ("field", "requests"),
    [
        (json.dumps({**LEASED, "sequences": 4}), 1),
        (json.dumps(LEASED), 1),
        (json.dumps({**LEASED, "requests": "many"}), 0),
        (json.dumps({**LEASED, "requests": float("inf")}), 0),
        (json.dumps({**LEASED, "tokens": None}), 0),
        (json.dumps({"requests": 1}), 0),
        (json.dumps([1]), 0),
        ("of another form", 0),
    ],
)
async def test_fields_of_gateways_of_another_version_are_read_as_far_as_they_are_known(
    connect: Connect, field: str, requests: int
) -> None:
    server = connect()
    await server.hset(PREFIX + "alice", "newer", field)
    async with gateways(connect()) as [gateway]:
        usage = await gateway.counts.of_key_everywhere("alice")
        assert (usage.requests, usage.tokens) == (requests, 0)
        assert gateway.is_up
        assert not gateway.task.done()
    await server.aclose()


async def test_whatever_the_store_fails_with_limits_hold_for_the_gateway(
    monkeypatch: pytest.MonkeyPatch, fake: FakeServer
) -> None:
    async def fail(self: RedisCounts) -> None:
        raise TypeError("unexpected")

    metrics, server = Metrics(), FakeRedis(server=fake, decode_responses=True)
    counts = RedisCounts(server, "store", LocalCounts(), metrics)
    with monkeypatch.context() as patch:
        patch.setattr(RedisCounts, "_exchange_fields", fail)
        await counts.exchange()
        assert b'limits_store_up{store="store"} 0.0' in metrics.exposition()
    await counts.exchange()
    assert b'limits_store_up{store="store"} 1.0' in metrics.exposition()
    await server.aclose()


def test_other_processes_of_a_gateway_are_not_counted_twice() -> None:
    inner = LocalCounts()
    counts = RedisCounts(FakeRedis(), "store", inner, Metrics())
    counts.add("alice", Usage(requests=1))
    inner.add("alice", Usage(requests=2))  # by other workers, which the store has too
    assert counts._add_own("alice", Usage(requests=2)).requests == 3
    assert counts._add_own("alice", Usage(requests=5)).requests == 6
    assert counts._add_own("alice", Usage()).requests == 3


def test_the_name_of_a_store_has_no_password() -> None:
    for url in ("redis://user:secret@cache.example.org:7000/1", "rediss://:secret@cache/0"):
        assert "secret" not in redis_counts._address(url)
    assert redis_counts._address("unix:///run/redis.sock") == "/run/redis.sock"
