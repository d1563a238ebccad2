"""Odd HTTP: paths, methods, headers, other protocols; and what they leave in metrics and logs."""

from __future__ import annotations

import http.client
import random

from tests.attack.attack import Attack, Request
from tests.attack.case import Run, case, requests

_HALF = b"GET / HTTP/1.1\r\nhost: a\r\n"


@case("labels", "3000 unknown paths, methods and models: the metrics must not grow with them")
def _labels(rng: random.Random) -> Run:
    made = []
    for number in range(1000):
        name = f"{number}-{rng.random()}"
        made.append(Request(f"/{name}", method="GET"))
        made.append(Request("/v1/translate", method=f"M{number}"))
        made.append(Request.of("/v1/translate", {"texts": "a", "model": name}))

    def run(attack: Attack) -> None:
        before = _exposition(attack)
        attack.send_all(made, at_once=4)
        grown = _exposition(attack) - before
        if grown > 20_000:
            attack.fail(f"/metrics grew by {grown} bytes")

    return run


def _exposition(attack: Attack) -> int:
    made = http.client.HTTPConnection(attack.target.host, attack.target.port, timeout=10)
    headers = {"authorization": f"Bearer {attack.target.key}"} if attack.target.key else {}
    made.request("GET", "/metrics", headers=headers)
    size = len(made.getresponse().read())
    made.close()
    return size


@requests("model-names", "20 names of models and languages of 1 MB", at_once=2)
def _names(_: random.Random) -> list[Request]:
    long = "m" * 1_000_000
    return [
        *(Request.of("/v1/translate", {"texts": "a", "model": long}) for _ in range(10)),
        *(Request.of("/v1/translate", {"texts": "a", "source": long}) for _ in range(5)),
        *(Request.of("/translate", {"q": "a", "source": long, "target": "en"}) for _ in range(5)),
    ]


@requests("timeouts-extreme", "80 time limits from 1e-320 to 1e308 and none of them a number")
def _timeouts(_: random.Random) -> list[Request]:
    values = ("1e-320", "0.001", "0", "-1", "1e308", "1e400", "nan", "inf", "9" * 5000, "½")
    body = {"texts": "Hola.", "model": "example-es-en"}
    return [
        Request.of("/v1/translate", body, headers={"x-request-timeout": value.encode("utf-8")})
        for value in values * 8
    ]


@case("paths", "200 paths that leave the folder of the page, or are no paths")
def _paths(rng: random.Random) -> Run:
    parts = ("..", "%2e%2e", "%2f", "%00", "%ff", "\\", "ui", "v1", "models", "*", "//", ";", "%25")

    def run(attack: Attack) -> None:
        for _ in range(200):
            path = "/" + "/".join(rng.choice(parts) for _ in range(rng.randrange(1, 9)))
            head = attack.head(path, "connection: close", method="GET") + b"\r\n"
            answer = attack.raw([head])
            if answer == "200" and ".." in path:
                attack.fail(f"{path} was answered")

    return run


@case("protocols", "beginnings of other protocols, and requests that are read in two ways")
def _protocols(rng: random.Random) -> Run:
    starts = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" * 10_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(1000),
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        _HALF + b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\r\n",
        _HALF
        + b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AA\r\n\r\n",
        _HALF + b"content-length: -5\r\n\r\n",
        _HALF + b"content-length: 99999999999999999999999\r\n\r\n",
        _HALF + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        _HALF + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        _HALF + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffffff\r\na",
        _HALF + b"transfer-encoding: gzip, chunked, chunked\r\n\r\n0\r\n\r\n",
        _HALF + b" folded: x\r\n\r\n",
        _HALF + b"na\x00me: x\r\n\r\n",
        b"A" * 70_000,
        b"\0" * 100_000,
    )

    def run(attack: Attack) -> None:
        works = [lambda start=start: attack.raw([start]) for start in starts * 4]
        rng.shuffle(works)
        attack.at_once(works, at_once=16)

    return run
