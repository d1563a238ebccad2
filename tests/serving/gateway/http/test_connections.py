"""Connections with large bodies read in turn; others read at once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving.gateway.http.connections import BYTES_PER_S, FREE_BYTES, PacedFlow, ReadingPace
from tests.serving.gateway.http.test_http_protocol import served

SIZE = 262_144
SHARE_S = SIZE / BYTES_PER_S


class Clock:
    """An event loop whose time passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.later: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, work: Callable[[], object]) -> None:
        self.later.append((self.now_s + delay_s, work))

    def run_to(self, now_s: float) -> None:
        self.now_s = now_s
        due = [work for at_s, work in self.later if at_s <= now_s]
        self.later = [(at_s, work) for at_s, work in self.later if at_s > now_s]
        for work in due:
            work()


class Transport:
    is_reading = True
    is_closed = False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed


def flows(count: int) -> tuple[Clock, list[Transport], list[PacedFlow]]:
    clock: Any = Clock()
    transports: list[Any] = [Transport() for _ in range(count)]
    pace = ReadingPace()
    return clock, transports, [PacedFlow(one, clock, pace) for one in transports]


def read(flow: PacedFlow, size: int) -> None:
    """What the protocol does with a part of a body, and the application with its message."""
    flow.paced_bytes = size
    flow.pause_reading()
    flow.resume_reading()


def test_small_bodies_are_read_at_once() -> None:
    clock, (transport,), (flow,) = flows(1)
    read(flow, 0)
    assert transport.is_reading
    assert clock.later == []


def test_large_bodies_are_read_in_turn() -> None:
    clock, transports, made = flows(4)
    for flow in made:
        read(flow, SIZE)
        flow.resume_reading()  # again, which takes no second place
    assert [at_s - 100 for at_s, _ in clock.later] == pytest.approx(
        [SHARE_S * place for place in (1, 2, 3, 4)]
    )
    for place in range(1, 5):
        assert sum(one.is_reading for one in transports) == place - 1
        clock.run_to(100 + SHARE_S * (place + 0.01))
    assert all(one.is_reading for one in transports)
    read(made[0], SIZE)  # later: unused time is not saved up
    assert clock.later[0][0] - clock.now_s == pytest.approx(SHARE_S, rel=0.01)


def test_closed_connections_do_not_read() -> None:
    clock, (transport,), (flow,) = flows(1)
    read(flow, SIZE)
    transport.is_closed = True
    clock.run_to(200)
    assert not transport.is_reading


class Recorder(ReadingPace):
    """Counts the bytes that connections waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.paced_bytes = 0

    def reserve(self, size: int, now_s: float) -> float:
        self.paced_bytes += size
        return super().reserve(size, now_s)


async def test_large_bodies_arrive_whole_on_connections_that_go_on() -> None:
    pace = Recorder()
    async with served(pace=pace) as server:

        async def post_bodies() -> list[bytes]:
            reader, writer = await server.connect()
            sizes = []
            for size in (FREE_BYTES * 5, 100, FREE_BYTES * 3):
                writer.write(
                    f"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n".encode()
                )
                writer.write(bytes(size))
                await reader.readuntil(b"\r\n\r\n")
                sizes.append(await reader.readexactly(len(str(size))))
            writer.close()
            return sizes

        async with asyncio.timeout(20):
            every = await asyncio.gather(*(post_bodies() for _ in range(4)))
    assert every == [[b"1250000", b"100", b"750000"]] * 4
    large = 4 * (FREE_BYTES * 5 + FREE_BYTES * 3)
    assert large / 2 < pace.paced_bytes <= large


async def test_bodies_below_the_limit_are_not_paced() -> None:
    pace = Recorder()
    async with served(pace=pace) as server:
        size = FREE_BYTES - 1000
        head = f"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
        answer = await server.exchanged(head.encode() + bytes(size))
        assert answer.endswith(str(size).encode())
    assert pace.paced_bytes == 0
