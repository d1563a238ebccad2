"""Connections: large headers, many of them, slow ones, and clients that do not read or leave."""

from __future__ import annotations

import itertools
import json
import random
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator

from tests.attack.attack import (
    CLOSED,
    LEFT,
    NO_ANSWER,
    OPEN,
    Attack,
    Run,
    case,
    first_status,
    unprepared,
)

_LARGE = b"x" * 1_000_000


def _endless(first: bytes, piece: bytes, times: int) -> Iterator[bytes]:
    yield first
    yield from itertools.repeat(piece, times)


@unprepared(
    "header-large", "4 headers of 100 MB, without a key", finding=1, seconds=12, is_short=True
)
def _large_header(attack: Attack) -> None:
    head = attack.head("/health", "x-large: ", method="GET", is_keyed=False).rstrip()
    attack.at_once([lambda: attack.raw(_endless(head, _LARGE, 100))] * 4, at_once=2)


@case("headers-many", "4 times 400,000 headers, without a key", finding=1)
def _many_headers(_: random.Random) -> Run:
    lines = b"".join(b"x-%d: %d\r\n" % (n, n) for n in range(4000))

    def run(attack: Attack) -> None:
        head = attack.head("/health", method="GET", is_keyed=False)
        attack.at_once([lambda: attack.raw(_endless(head, lines, 100))] * 4, at_once=2)

    return run


@unprepared("url-large", "4 URLs of 50 MB, without a key", finding=1)
def _large_url(attack: Attack) -> None:
    attack.at_once([lambda: attack.raw(_endless(b"GET /", _LARGE, 50))] * 4, at_once=2)


@unprepared("trailer-large", "a chunked body with 100 MB of trailers", seconds=8)
def _trailers(attack: Attack) -> None:
    head = attack.head("/v1/translate", "transfer-encoding: chunked", "content-type: text/json")
    first = head + b"\r\n1\r\n{\r\n0\r\nx-trailer: "
    attack.at_once([lambda: attack.raw(_endless(first, _LARGE, 100))] * 4, at_once=2)


@unprepared("chunk-extension-large", "a chunk with an extension of 100 MB")
def _chunk_extension(attack: Attack) -> None:
    head = attack.head("/v1/translate", "transfer-encoding: chunked")
    first = head + b"\r\n1;x="
    attack.at_once([lambda: attack.raw(_endless(first, _LARGE, 100))] * 4, at_once=2)


@case("line-breaks", "8 connections with 400 MB of line breaks before a request")
def _line_breaks(_: random.Random) -> Run:
    lines = b"\r\n" * 500_000

    def run(attack: Attack) -> None:
        attack.at_once([lambda: attack.raw(itertools.repeat(lines, 400))] * 8, at_once=4)

    return run


@case(
    "bodies-keyless",
    "100 bodies of 19.9 MB without a key, none of them complete, kept open",
    finding=2,
    seconds=10,
)
def _keyless_bodies(_: random.Random) -> Run:
    paths = ("/translate", "/detect", "/translate_file")

    def run(attack: Attack) -> None:
        heads = []
        for path in paths:
            kind = "multipart/form-data; boundary=b" if "file" in path else "application/json"
            lines = (f"content-type: {kind}", "content-length: 19900001")
            heads.append(attack.head(path, *lines, is_keyed=False) + b"\r\n")
        _pour(attack, [heads[n % 3] for n in range(100)], 19_900_000)

    return run


@unprepared("bodies-keyed", "100 bodies of 19.9 MB with a key, none of them complete, kept open")
def _keyed_bodies(attack: Attack) -> None:
    lines = ("content-type: application/json", "content-length: 19900001")
    head = attack.head("/v1/translate", *lines) + b"\r\n"
    _pour(attack, [head] * 100, 19_900_000)


def _pour(attack: Attack, heads: list[bytes], size: int) -> None:
    """Send as much of each body as is taken, then wait."""
    piece = b" " * 262_144
    selector = selectors.DefaultSelector()
    for head in heads:
        made = attack.connect()
        made.sendall(head)
        made.setblocking(False)
        selector.register(made, selectors.EVENT_WRITE, [size])
    closed = 0
    while not attack.is_over and selector.get_map():
        for key, _ in selector.select(timeout=attack.left_s):
            made, left = key.fileobj, key.data
            assert isinstance(made, socket.socket)
            try:
                left[0] -= made.send(piece[: left[0]])
            except BlockingIOError:
                continue
            except OSError:
                closed += 1
                left[0] = 0
            if left[0] <= 0:
                selector.unregister(made)
    attack.count(CLOSED, closed)
    attack.count(NO_ANSWER, len(heads) - closed)
    attack.wait()


@unprepared(
    "connections-half-sent",
    "3000 requests without a key whose header does not end",
    finding=2,
    seconds=8,
)
def _half_sent(attack: Attack) -> None:
    _allow_files()
    head = attack.head("/translate", "x-a: ", is_keyed=False).rstrip()
    for _ in range(3000):
        if attack.is_over:
            break
        try:
            attack.connect().sendall(head)
            attack.count(OPEN)
        except OSError:
            attack.count(CLOSED)
    attack.wait()


def _allow_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))


@unprepared(
    "trickle",
    "60 connections that send a byte each second: of a header, of a body, of a body after 100",
    finding=2,
    seconds=32,
)
def _trickle(attack: Attack) -> None:
    lines = ("content-type: application/json", "content-length: 5000")
    whole = attack.head("/v1/translate", *lines)
    starts = (
        attack.head("/v1/translate", "x-a: ").rstrip(),
        whole + b"\r\n",
        whole + b"expect: 100-continue\r\n\r\n",
    )
    opened = []
    for number in range(60):
        made = attack.connect()
        made.sendall(starts[number % 3])
        made.setblocking(False)
        opened.append(made)
    while opened and not attack.is_over:
        time.sleep(1)
        opened = [made for made in opened if _takes(made, b"x")]
    attack.count(CLOSED, 60 - len(opened))
    if opened:
        attack.fail(f"{len(opened)} of 60 connections are open after {32} s")


def _takes(made: socket.socket, piece: bytes) -> bool:
    try:
        made.send(piece)
        while answer := made.recv(65_536):
            if not answer.startswith(b"HTTP/1.1 100"):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@unprepared("idle", "1500 connections that send nothing, opened again and again", seconds=8)
def _idle(attack: Attack) -> None:
    _allow_files()
    while not attack.is_over:
        made = [attack.connect() for _ in range(500)]
        attack.count(OPEN, len(made))
        time.sleep(0.5)
        if attack.requests >= 1500:
            for each in made[::2]:
                each.close()


@unprepared("pipelined", "20 connections with 5000 requests each, sent at once, answers unread")
def _pipelined(attack: Attack) -> None:
    one = attack.head("/health", method="GET") + b"\r\n"
    attack.at_once([lambda: attack.raw([one * 5000])] * 20, at_once=10)


@case("pipelined-translations", "10 connections with 500 translations each, sent at once")
def _pipelined_translations(_: random.Random) -> Run:
    body = json.dumps({"texts": "Hola.", "model": "example-es-en"}).encode()

    def run(attack: Attack) -> None:
        lines = ("content-type: application/json", f"content-length: {len(body)}")
        one = attack.head("/v1/translate", *lines) + b"\r\n" + body
        attack.at_once([lambda: attack.raw([one * 500])] * 10, at_once=10)

    return run


@case("chunks-tiny", "4 bodies of a million chunks of one byte", is_short=True)
def _tiny_chunks(_: random.Random) -> Run:
    chunks = b"1\r\n \r\n" * 10_000

    def run(attack: Attack) -> None:
        lines = ("transfer-encoding: chunked", "content-type: application/json")
        head = attack.head("/v1/translate", *lines) + b"\r\n"
        attack.at_once([lambda: attack.raw(_endless(head, chunks, 100))] * 4, at_once=4)

    return run


@unprepared("expect-continue", "500 requests with Expect: 100-continue and no body")
def _expect(attack: Attack) -> None:
    lines = ("content-type: application/json", "content-length: 19000000")
    head = attack.head("/v1/translate", *lines, "expect: 100-continue") + b"\r\n"
    for _ in range(500):
        if not attack.is_over:
            attack.connect().sendall(head)
            attack.count(OPEN)
    attack.wait()


@unprepared("cookies", "400 requests with 60 KB of cookies")
def _cookies(attack: Attack) -> None:
    cookies = "cookie: " + "; ".join(f"c{n}={n:010}" for n in range(3500))
    head = attack.head("/v1/models", cookies, "connection: close", method="GET") + b"\r\n"
    attack.at_once([lambda: attack.raw([head])] * 400, at_once=8)


@case("headers-repeated", "400 requests with a header of the gateway's own 200 times")
def _repeated(_: random.Random) -> Run:
    names = ("traceparent", "tracestate", "x-request-timeout", "x-request-id", "authorization")

    def run(attack: Attack) -> None:
        heads = []
        for name in names:
            lines = (f"{name}: " + "a=b," * 60,) * 200
            head = attack.head("/v1/models", *lines, "connection: close", method="GET")
            heads.append(head + b"\r\n")
        works = [lambda head=head: attack.raw([head]) for head in heads * 80]
        attack.at_once(works, at_once=8)

    return run


@case(
    "streams-unread",
    "60 streams of 20 long outputs each that are never read",
    finding=9,
    seconds=12,
    is_short=True,
)
def _unread_streams(_: random.Random) -> Run:
    fields = {"prompts": ["a small"] * 20, "max_new_tokens": 400, "temperature": 1.0}
    body = json.dumps({**fields, "model": "example-gpt", "stream": True}).encode()

    def run(attack: Attack) -> None:
        lines = ("content-type: application/json", f"content-length: {len(body)}")
        head = attack.head("/v1/generate", *lines) + b"\r\n"
        opened = []
        for _ in range(60):
            made = attack.connect()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            made.sendall(head + body)
            opened.append(made)
        attack.wait()
        for made in opened:
            attack.count(first_status(made, 0.1))

    return run


@unprepared(
    "answers-unread", "100 connections that ask for a large document 100 times and read nothing"
)
def _unread_answers(attack: Attack) -> None:
    one = attack.head("/openapi.json", method="GET") + b"\r\n"
    for _ in range(100):
        made = attack.connect()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.setblocking(False)
        try:
            made.send(one * 100)
            attack.count(OPEN)
        except OSError:
            attack.count(CLOSED)
    attack.wait()


@case(
    "cancelled",
    "requests, sound and refused, whose client resets the connection at once, for 8 s",
    finding=13,
    is_short=True,
)
def _cancelled(rng: random.Random) -> Run:
    bodies = (
        b'{"texts": "Hola.", "model": "example-es-en"}',
        b'{"texts": ["Hola."], "to": 1}',
        b'{"prompts": "a", "model": "example-gpt", "max_new_tokens": 300, "stream": true}',
        b"{",
    )
    paths = ("/v1/translate", "/v1/translate", "/v1/generate", "/translate")

    def run(attack: Attack) -> None:
        def work() -> None:
            while not attack.is_over:
                which = rng.randrange(len(bodies))
                body = bodies[which]
                lines = ("content-type: application/json", f"content-length: {len(body)}")
                head = attack.head(paths[which], *lines) + b"\r\n"
                try:
                    made = socket.create_connection((attack.target.host, attack.target.port))
                    made.sendall(head + body)
                    time.sleep(rng.choice((0, 0, 0.001, 0.005)))
                    linger = struct.pack("ii", 1, 0)
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    made.close()
                except OSError:
                    attack.count(CLOSED)
                    continue
                attack.count(LEFT)
                time.sleep(0.004)

        attack.at_once([work] * 2, at_once=2)

    return run


@unprepared(
    "ready-many", "40 clients that ask /ready without a pause, for 6 s", finding=14, seconds=6
)
def _ready(attack: Attack) -> None:
    head = attack.head("/ready", "connection: close", method="GET", is_keyed=False) + b"\r\n"

    def work() -> None:
        while not attack.is_over:
            attack.raw([head])
            time.sleep(0.05)

    attack.at_once([work] * 40, at_once=40)
