"""A web server of images on loopback, and a gateway that fetches from it."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from collections.abc import Awaitable, Callable

from serving.gateway.requests.image_urls import ImageFetcher
from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import Gateway, MakeGateway

LOOPBACK = "127.0.0.0/8"
"""The explicit setting without which this server would not be reached."""
RED = image_file("red")
HOST = "images.test"
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(
    body: bytes = b"", status: str = "200 OK", kind: str = "image/png", **headers: str
) -> bytes:
    """A response with its length."""
    given = {"content-length": str(len(body)), "content-type": kind, "connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class ImageServer:
    """Serves.

    Attributes:
        answers: Path → response, or what writes it.
        requests: The heads of requests, in lower case.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Write] = {}
        self.requests: list[str] = []
        self.closed = asyncio.Event()
        """Set when a client has closed its connection."""

    async def start(self, tls: ssl.SSLContext | None = None) -> ImageServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.lower())
            answer = self.answers.get(head.split()[1], http(status="404 Not Found"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed.set()
            writer.close()


class Names:
    """A resolver: host → its addresses at each look, the last ones from then on."""

    def __init__(self, **names: list[list[str]]) -> None:
        self._names = {name.replace("_", "."): looks for name, looks in names.items()}
        self.looks: list[str] = []

    async def __call__(self, host: str, port: int) -> list[ipaddress.IPv4Address]:
        self.looks.append(host)
        looks = self._names.get(host, [[host]])
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        return [ipaddress.ip_address(address) for address in found]


class Caller:
    """A gateway that fetches from the server, by the name `images.test`."""

    def __init__(self, make: MakeGateway, server: ImageServer, **settings: object) -> None:
        origin = f"http://{HOST}:{server.port}"
        given = {"image_urls": origin, "image_url_networks": LOOPBACK, **settings}
        self.gateway: Gateway = make(**given)
        self.url = f"{origin}/red.png"
        self.origin = origin
        self.names = Names(images_test=[["127.0.0.1"]])
        self.use(self.names)

    def use(self, names: Names) -> None:
        self.names = names
        self.gateway.service.fetcher = ImageFetcher(self.gateway.settings, names)

    async def caption(self, *urls: str) -> tuple[int, list[dict[str, object]]]:
        """The status, and for each image its text or its error."""
        good = base64.b64encode(RED).decode()
        response = await self.gateway.http.post("/v1/caption", json={"images": [*urls, good]})
        return response.status_code, response.json()["data"]

    async def refused(self, url: str) -> dict[str, str]:
        """The error of one URL, beside an image that is served."""
        status, items = await self.caption(url)
        assert status == 200
        assert items[1]["text"] == "picture"
        error = items[0]["error"]
        assert error["field"] == "images.0"
        return error
