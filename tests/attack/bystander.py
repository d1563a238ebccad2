"""Another client, in a process of its own: `/health` and small requests while an attack runs.

It also calls a server of its own that does nothing. What that takes is what the machine takes,
whatever is attacked.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.attack.stacks import Target
from tests.fuzz.cases import PICTURE

HEALTH, TRANSLATION, IMAGE, CONTROL = "health", "translation", "image", "control"
MODEL = "example-es-en"
_TEXT = {"texts": "El mundo no es suficiente.", "model": MODEL}
_PICTURE = {"images": base64.b64encode(PICTURE).decode(), "model": "example-vit"}
_CALLS: Mapping[str, tuple[tuple[str, dict[str, Any], bytes], ...]] = {
    TRANSLATION: (
        ("/v1/translate", _TEXT, b"The world is not enough."),
        ("/v1/translate", {**_TEXT, "glossary": {"mundo": "globe"}}, b"globe"),
    ),
    IMAGE: (("/v1/classify", _PICTURE, b"label"),),
}
"""By kind: path, body, what the response has in it."""
TIMEOUT_S = 60.0
_PAUSES_S = {HEALTH: 0.05, TRANSLATION: 0.2, IMAGE: 0.4, CONTROL: 0.05}


@dataclass(frozen=True)
class Call:
    """One call of the other client.

    Attributes:
        kind: Which.
        began_s: On the machine's monotonic clock.
        seconds: Until its answer.
        is_right: Whether that was the right one.
        answer: Its status, or what was raised.
    """

    kind: str
    began_s: float
    seconds: float
    is_right: bool
    answer: str


class Bystander:
    """The process, and what it has seen.

    Args:
        target: Whom it calls.
    """

    def __init__(self, target: Target) -> None:
        self._kinds = set(_PAUSES_S) - (set() if target.has_images else {IMAGE})
        environment = {**os.environ, "BYSTANDER_KEY": target.other_key or ""}
        arguments = (target.host, str(target.port), ",".join(self._kinds))
        command = [sys.executable, "-m", "tests.attack.bystander", *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._calls: list[Call] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def calls(self, since_s: float, until_s: float) -> list[Call]:
        """Those that were under way then; waits until the first ones after it have ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: {c.kind for c in self._calls if c.began_s > until_s} >= self._kinds,
                timeout=TIMEOUT_S + 5,
            )
            found = [c for c in self._calls if c.began_s + c.seconds >= since_s]
            return [c for c in found if c.began_s <= until_s]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._calls.append(Call(**json.loads(line)))
                    self._changed.notify_all()


def _call(kind: str, number: int, host: str, port: int, key: str) -> dict[str, Any]:
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        wanted = b""
        if kind in _CALLS:
            path, body, wanted = _CALLS[kind][number % len(_CALLS[kind])]
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            connection.request("POST", path, json.dumps(body), headers)
        else:
            connection.request("GET", "/health")
        response = connection.getresponse()
        content = response.read()
        is_right = response.status == 200 and wanted in content
        answer = str(response.status)
    except (OSError, http.client.HTTPException) as error:
        is_right, answer = False, type(error).__name__
    finally:
        connection.close()
    seconds = time.monotonic() - began_s
    return Call(kind, began_s, seconds, is_right, answer).__dict__


def _repeat(kind: str, host: str, port: int, key: str) -> None:
    for number in itertools.count():
        line = json.dumps(_call(kind, number, host, port, key)) + "\n"
        os.write(1, line.encode())
        time.sleep(_PAUSES_S[kind])


def _control(listener: socket.socket) -> None:
    """Answers anything, in a process of its own."""
    while True:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        connection.close()


def main() -> None:
    """Call until killed."""
    host, port, key = sys.argv[1], int(sys.argv[2]), os.environ["BYSTANDER_KEY"]
    kinds = sys.argv[3].split(",")
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    if os.fork() == 0:
        parent = os.getppid()
        threading.Thread(target=_control, args=(listener,), daemon=True).start()
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(0)
    listener.close()
    places = dict.fromkeys(kinds, (host, port)) | {CONTROL: address}
    threads = [
        threading.Thread(target=_repeat, args=(kind, *place, key)) for kind, place in places.items()
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
