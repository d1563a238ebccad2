"""The servers under load: how each is started, what a request to it is, and what it answers.

`http.client` parses headers with the e-mail package, which takes longer than a small request.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoders import infinity
from benchmarks.encoders.models import Item, bundle, checkpoint
from examples.demo.server import serving

TIMEOUT_S = 300
_LARGEST_READ = 1 << 18


class Connection:
    """One connection that is kept alive. Used by one thread.

    Args:
        url: The server, `http://HOST:PORT`.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self._host = f"{address.hostname}:{address.port}"
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the response.

        Raises:
            OSError: the server closed the connection or did not respond in time.
            ValueError: the response has no `content-length`.
        """
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: {kind}\r\n"
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        received = self._read()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._read()
        status, length = parse_head(received[:end])
        rest = [received[end + 4 :]]
        missing = length - len(rest[0])
        while missing > 0:
            rest.append(self._read())
            missing -= len(rest[-1])
        return status, b"".join(rest)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self) -> bytes:
        data = self._socket.recv(_LARGEST_READ)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data


def parse_head(head: bytes) -> tuple[int, int]:
    """Status and length of the body, out of the head of a response.

    Raises:
        ValueError: it has no `content-length`.
    """
    first, *lines = head.split(b"\r\n")
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(first.split()[1]), int(value)
    raise ValueError("a response without content-length")


JSON = "application/json"
BOUNDARY = "----triptych-benchmark"
LABELS = 1000
"""Of `vit-b16`."""


class Dialect(Protocol):
    """One server's requests and answers."""

    def request(self, item: Item) -> tuple[str, str, bytes]:
        """Path, content type and body."""
        ...

    def vector(self, body: bytes) -> NDArray[np.float64]:
        """The embedding, or the logits of all classes, in a response to `probe`."""
        ...

    def probe(self, item: Item) -> tuple[str, str, bytes]:
        """As `request`, for a response that holds the whole vector."""
        ...


class TriptychDialect:
    """`/v1/embed`, and `/v1/classify` for models with classes; images as files of a form."""

    def __init__(self, model: str) -> None:
        self._task = "classify" if model == "vit-b16" else "embed"

    def request(self, item: Item) -> tuple[str, str, bytes]:
        if isinstance(item, str):
            return f"/v1/{self._task}", JSON, json.dumps({"texts": [item]}).encode()
        return self._form(item, {})

    def probe(self, item: Item) -> tuple[str, str, bytes]:
        if isinstance(item, str) or self._task == "embed":
            return self.request(item)
        return self._form(item, {"top_k": str(LABELS), "function_to_apply": "none"})

    def vector(self, body: bytes) -> NDArray[np.float64]:
        [item] = json.loads(body)["data"]
        if self._task == "embed":
            return np.array(item["embedding"])
        logits = np.zeros(LABELS)
        for entry in item["labels"]:
            logits[int(entry["label"].removeprefix("LABEL_"))] = entry["score"]
        return logits

    def _form(self, jpeg: bytes, fields: dict[str, str]) -> tuple[str, str, bytes]:
        start = f"--{BOUNDARY}\r\ncontent-disposition: form-data; name="
        parts = "".join(f'{start}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        file = f'{start}"images"; filename="a.jpg"\r\ncontent-type: image/jpeg\r\n\r\n'
        body = (parts + file).encode() + jpeg + f"\r\n--{BOUNDARY}--\r\n".encode()
        return f"/v1/{self._task}", f"multipart/form-data; boundary={BOUNDARY}", body


class InfinityDialect:
    """OpenAI's `/embeddings`; images as data URIs, the one form in which it takes them as bytes."""

    def request(self, item: Item) -> tuple[str, str, bytes]:
        if isinstance(item, str):
            return "/embeddings", JSON, json.dumps({"model": "m", "input": [item]}).encode()
        head = b'{"model": "m", "modality": "image", "input": ["data:image/jpeg;base64,'
        return "/embeddings", JSON, head + base64.b64encode(item) + b'"]}'

    def probe(self, item: Item) -> tuple[str, str, bytes]:
        return self.request(item)

    def vector(self, body: bytes) -> NDArray[np.float64]:
        [item] = json.loads(body)["data"]
        return np.array(item["embedding"])


class Server:
    """A running server; methods may be called from several threads, each has its connection."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        self._url = url
        self._dialect = dialect
        self._own = threading.local()
        self._failures: list[str] = []

    def send(self, item: Item) -> int:
        """1 if the request succeeded, else 0; the reason is kept."""
        try:
            status, body = self._post(*self._dialect.request(item))
        except (OSError, ValueError) as error:
            self._failures.append(repr(error))
            self.close()
            return 0
        if status != 200:
            self._failures.append(f"{status} {body[:200].decode(errors='replace')}")
        return int(status == 200)

    def vector(self, item: Item) -> NDArray[np.float64]:
        """What the model returns for one item.

        Raises:
            RuntimeError: the request failed.
        """
        status, body = self._post(*self._dialect.probe(item))
        if status != 200:
            raise RuntimeError(f"{status} {body[:500].decode(errors='replace')}")
        return self._dialect.vector(body)

    def take_failures(self) -> list[str]:
        """The reasons since the last call."""
        found, self._failures = self._failures, []
        return found

    def close(self) -> None:
        """Close the calling thread's connection."""
        if hasattr(self._own, "connection"):
            self._own.connection.close()
            del self._own.connection

    def _post(self, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        if not hasattr(self._own, "connection"):
            self._own.connection = Connection(self._url)
        connection: Connection = self._own.connection
        return connection.post(path, kind, body)


@contextmanager
def running(engine: str, model: str, cache: Path) -> Iterator[Server]:
    """The server of an engine, `triptych RUNTIME-PRECISION` or `infinity ENGINE-PRECISION`."""
    product, _, kind = engine.partition(" ")
    runtime, _, precision = kind.partition("-")
    if product == "triptych":
        found = bundle(model, runtime, precision, cache)
        with serving(found.folder.parents[1]) as url:
            yield Server(url, TriptychDialect(model))
    else:
        with infinity.serving(checkpoint(model, cache), runtime, precision, cache) as url:
            yield Server(url, InfinityDialect())


def supports(engine: str, model: str) -> bool:
    """Whether a server takes a model: infinity has no image classes and no ONNX for images."""
    if not engine.startswith("infinity"):
        return True
    if model == "clip-b32":
        return engine == "infinity torch-fp32"
    return model != "vit-b16"


def summary(failures: list[str]) -> dict[str, Any]:
    """How many, and the first one's reason."""
    return {"failures": len(failures)} | ({"first_failure": failures[0]} if failures else {})
