"""What a page of another site can make a user's browser send to a gateway without keys."""

from __future__ import annotations

import random

from tests.attack.attack import Attack, Request
from tests.attack.case import Run, case

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
