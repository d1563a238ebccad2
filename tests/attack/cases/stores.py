"""What clients can leave: stored glossaries and translated files."""

from __future__ import annotations

import http.client
import json
import random
from urllib.parse import quote

from tests.attack.attack import Attack, Request
from tests.attack.case import Run, case, requests
from tests.attack.cases.documents import _translate_file


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
