"""Bodies of all requests together have a limit in bytes; small ones do not count."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.gateway.admission.admission import FREE_BYTES
from tests.serving.gateway.admission.test_keys import entry
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

JSON = {"content-type": "application/json"}
ALICE, BOB = ({**JSON, "authorization": f"Bearer {name}"} for name in ("alice-key", "bob-key"))
SMALL = b'{"texts": "hello"}'


def body_of(size: int) -> bytes:
    return SMALL + b" " * (size - len(SMALL))


class Upload:
    """A body whose last part waits to be sent."""

    def __init__(self, gateway: Gateway, size: int, headers: dict[str, str] = JSON) -> None:
        self._size = size
        self._rest = asyncio.Event()
        self.begun = asyncio.Event()
        self.response = asyncio.ensure_future(
            gateway.http.post("/v1/translate", content=self._parts(), headers=headers)
        )

    async def _parts(self) -> AsyncIterator[bytes]:
        yield body_of(self._size - 1)
        self.begun.set()
        await self._rest.wait()
        yield b" "

    async def finished(self) -> int:
        self._rest.set()
        return (await self.response).status_code


@pytest.mark.parametrize("is_declared", [True, False])
async def test_bodies_beyond_the_limit_get_429(
    make_gateway: MakeGateway, is_declared: bool
) -> None:
    gateway = make_gateway(max_concurrent_bytes=500_000)
    first = Upload(gateway, FREE_BYTES + 400_000)
    await first.begun.wait()
    content = body_of(FREE_BYTES + 200_000)

    async def parts() -> AsyncIterator[bytes]:
        yield content

    async def send() -> tuple[int, str | None]:
        given = content if is_declared else parts()
        response = await gateway.http.post("/v1/translate", content=given, headers=JSON)
        return response.status_code, response.headers.get("retry-after")

    assert await send() == (429, "1")
    small = await gateway.http.post("/v1/translate", content=body_of(FREE_BYTES), headers=JSON)
    assert small.status_code == 200
    assert await first.finished() == 200
    assert await send() == (200, None)


async def test_body_that_could_never_be_read_gets_413(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_bytes=100_000)
    content = body_of(FREE_BYTES + 100_001)
    response = await gateway.http.post("/v1/translate", content=content, headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


async def test_key_has_a_limit_of_its_own(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    alice = entry("alice", "alice-key", max_concurrent_bytes=300_000)
    file.write_text(alice + entry("bob", "bob-key"))
    gateway = make_gateway(api_keys=file, max_concurrent_bytes=10**6)
    first = Upload(gateway, FREE_BYTES + 200_000, ALICE)
    await first.begun.wait()
    content = body_of(FREE_BYTES + 200_000)
    refused = await gateway.http.post("/v1/translate", content=content, headers=ALICE)
    assert (refused.status_code, "with this key" in error_of(refused)["message"]) == (429, True)
    served = await gateway.http.post("/v1/translate", content=content, headers=BOB)
    assert served.status_code == 200
    assert await first.finished() == 200
    assert (await gateway.http.post("/v1/translate", content=content, headers=ALICE)).is_success


async def test_disconnect_while_sending_frees_the_bytes(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_bytes=500_000)
    first = Upload(gateway, FREE_BYTES + 400_000)
    await first.begun.wait()
    first.response.cancel()
    await asyncio.wait((first.response,))
    content = body_of(FREE_BYTES + 400_000)
    assert (await gateway.http.post("/v1/translate", content=content, headers=JSON)).is_success
