"""Odd HTTP, pages of other sites, and what clients can leave."""

from __future__ import annotations

import http.client
import json
import random
from urllib.parse import quote

from tests.attack.attack import Attack, Request, Run, case, requests
from tests.attack.cases.files import _translate_file

_BODY = b'{"texts": "Hola.", "model": "example-es-en"}'
_REFUSED = frozenset({"400", "403", "415", "421"})


@case(
    "rebound-hosts",
    "requests with the names of other hosts, as after DNS rebinding",
    finding=10,
    answers=_REFUSED,
    is_keyless=True,
    is_short=True,
)
def _hosts(_: random.Random) -> Run:
    hosts = (
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8080"),
        *("127.0.0.1@evil.example", "evil.example.", "EVIL.example", "[evil.example]", "1.2.3.4.5"),
        *("evil%2eexample", "evil.example, localhost", "localhost\tevil.example"),
    )
    made = [
        request
        for host in hosts
        for request in (
            Request("/v1/translate", _BODY, headers={"host": host}),
            Request("/v1/models", kind=None, method="GET", headers={"host": host}),
            Request("/", kind=None, method="GET", headers={"host": host}),
            Request("/metrics", kind=None, method="GET", headers={"host": host}),
        )
    ]
    return lambda attack: attack.send_all(made)


@case(
    "cross-site-posts",
    "bodies that a form or script of another site can send without a preflight",
    finding=10,
    answers=_REFUSED,
    is_keyless=True,
    is_short=True,
)
def _posts(_: random.Random) -> Run:
    kinds = (
        *("text/plain", "text/plain; a=application/json", "application/x-www-form-urlencoded"),
        *("multipart/form-data; boundary=b", "application/json-not", None),
    )
    paths = ("/v1/translate", "/translate", "/hf/translate/example-es-en", "/v1/completions")
    made = [Request(path, _BODY, kind=kind) for kind in kinds[:2] for path in paths]
    made += [Request(paths[0], _BODY, kind=kind) for kind in kinds[2:]]
    made += [
        Request(path, _BODY, headers={name: value})
        for path in paths
        for name, value in (
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("origin", "http://localhost.evil.example"),
        )
    ]
    made.append(Request("/v1/glossaries/kitchen", method="DELETE", headers={"origin": "null"}))

    def run(attack: Attack) -> None:
        attack.send_all(made)

    return run


@requests("glossaries", "400 glossaries of 900 KB, and names that are paths", at_once=2)
def _glossaries(_: random.Random) -> list[Request]:
    body = json.dumps({"terms": {f"{n:04}": "b" * 195 for n in range(1000)}}).encode()
    paths = ("..", ".", "../../a", "%2e%2e", "a/b", "\0", "a" * 5000, "CON", "..%2f..%2fattacked")
    return [
        *(Request(f"/v1/glossaries/g{n}", body, method="PUT") for n in range(400)),
        *(Request(f"/v1/glossaries/{quote(name)}", body, method="PUT") for name in paths),
        *(Request(f"/v1/glossaries/{name}", body, method="PUT") for name in ("%2e%2e", "..%2fa")),
        *(Request(f"/v1/glossaries/g{n}", kind=None, method="GET") for n in range(100)),
    ]


@case(
    "downloads",
    "60 translated files of 19 MB by one key; then another key's file",
    finding=18,
    seconds=20,
)
def _downloads(_: random.Random) -> Run:
    large = _translate_file("a.html", b"<p>Hola.</p><!--" + b"x" * 19_000_000 + b"-->")

    def run(attack: Attack) -> None:
        attack.send_all([large] * 60, at_once=2)
        small = _translate_file("a.txt", b"Hola.")
        made = http.client.HTTPConnection(attack.target.host, attack.target.port, timeout=10)
        headers = {"content-type": small.kind or ""}
        if attack.target.other_key:
            headers["authorization"] = f"Bearer {attack.target.other_key}"
        made.request("POST", small.path, small.body, headers)
        status = made.getresponse().status
        made.close()
        if status != 200:
            attack.fail(f"another key's file: {status}")

    return run


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
