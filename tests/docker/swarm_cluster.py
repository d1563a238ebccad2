"""A stack in swarm mode on this machine, and clients that retry as a balancer's would."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from tests.e2e.workload import Load, counted, until

STACK = "triptych-test"
FILE = Path(__file__).parents[2] / "docker" / "swarm.yaml"
RETRY_S = 60.0
"""For which a request is sent again to any gateway."""
AT_ONCE_S = 0.5
"""A connection that is closed within that had not begun the request."""
_REMOVED_S = 120.0
"""For containers that finish their requests."""


def docker(*arguments: str, **environment: str) -> str:
    """The output of a command of Docker's client.

    Raises:
        RuntimeError: it failed; the message has its error output.
    """
    done = subprocess.run(
        ["docker", *arguments], env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def containers(service: str) -> list[str]:
    """The running containers of a service, the healthy ones only."""
    labels = f"label=com.docker.swarm.service.name={STACK}_{service}"
    return docker("ps", "--quiet", "--filter", labels, "--filter", "health=healthy").split()


def addresses() -> list[str]:
    """The gateways' ports on loopback: what a balancer with health checks would know."""
    found = containers("gateway")
    described = json.loads(docker("inspect", *found)) if found else []
    ports = [each["NetworkSettings"]["Ports"].get("8080/tcp") for each in described]
    return [f"127.0.0.1:{port[0]['HostPort']}" for port in ports if port]


@contextmanager
def deployed(repository: Path, keys: Path, tritons: int, gateways: int) -> Iterator[None]:
    """The stack; its containers, networks, volumes and secrets are removed at the end.

    Ports are of the containers: the routing mesh needs IPVS, which not every kernel has.
    """
    variables = {
        **{"REPOSITORY": str(repository), "API_KEYS": str(keys), "API_KEYS_VERSION": STACK},
        **{"TRITONS": str(tritons), "GATEWAYS": str(gateways)},
        **{"PORTS_MODE": "host", "HTTP_PORT": "0", "GRPC_PORT": "0", "GATEWAY_ENDPOINTS": "dnsrr"},
    }
    docker("stack", "deploy", "--resolve-image=never", f"--compose-file={FILE}", STACK, **variables)
    try:
        yield
    finally:
        docker("stack", "rm", STACK)
        labels = f"label=com.docker.stack.namespace={STACK}"
        until_s = time.monotonic() + _REMOVED_S
        while docker("ps", "--all", "--quiet", "--filter", labels):
            assert time.monotonic() < until_s, "containers of the stack are left"
            time.sleep(0.5)
        for volume in docker("volume", "ls", "--quiet", "--filter", labels).split():
            docker("volume", "rm", "--force", volume)


class Balanced(httpx.AsyncBaseTransport):
    """Sends each request to one gateway after the other, and what is refused to the next.

    Attributes:
        refused: Requests that were sent to another: 503, no connection, or one that was closed at
            once without a response, as any idle connection may be.
    """

    def __init__(self, headers: dict[str, str]) -> None:
        self.refused = 0
        self.headers = headers
        self._addresses = addresses()
        self._turn = itertools.count()
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))

    async def follow(self) -> None:
        """Know the gateways that are ready, until cancelled: one that drains is not."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:

            async def is_ready(address: str) -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return (await client.get(f"http://{address}/ready")).status_code == 200
                return False

            while True:
                found = await asyncio.to_thread(addresses)
                ready = await asyncio.gather(*map(is_ready, found))
                self._addresses = list(itertools.compress(found, ready))
                await asyncio.sleep(0.2)

    async def counted(self, name: str) -> float:
        """The sum of a counter over all gateways that are healthy."""
        headers, total = self.headers, 0.0
        for address in await asyncio.to_thread(addresses):
            url = f"http://{address}"
            async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
                total += await counted(client, name)
        return total

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The first response that is not 503.

        Raises:
            TransportError: a connection broke while the request was worked on.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RETRY_S
        while True:
            known = self._addresses
            if known:
                host, port = known[next(self._turn) % len(known)].split(":")
                url = request.url.copy_with(host=host, port=int(port))
                sent = httpx.Request(
                    request.method,
                    url,
                    headers=request.headers,
                    stream=request.stream,
                    extensions=request.extensions,
                )
                sent_s, response = loop.time(), None
                try:
                    response = await self._transport.handle_async_request(sent)
                except httpx.ConnectError:
                    pass
                except httpx.TransportError:
                    if loop.time() - sent_s > AT_ONCE_S:
                        raise
                if response is not None and response.status_code != 503:
                    return response
                if response is not None:
                    await response.aclose()
            if loop.time() > until_s:
                raise httpx.ConnectError("no gateway accepted the request")
            self.refused += 1
            await asyncio.sleep(0.1)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class RetryingLoad(Load):
    """Requests that are sent again as a whole when their connection breaks.

    Attributes:
        repeated: How often.
    """

    repeated = 0

    async def _answer(self, path: str, body: dict[str, object], begun: asyncio.Event) -> object:
        while True:
            try:
                return await super()._answer(path, body, begun)
            except httpx.TransportError:
                self.repeated += 1


@asynccontextmanager
async def balanced(key: str) -> AsyncIterator[tuple[httpx.AsyncClient, Balanced]]:
    """A client of all gateways."""
    headers = {"authorization": f"Bearer {key}"}
    transport = Balanced(headers)
    following = asyncio.create_task(transport.follow())
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://gateway:8080", headers=headers, timeout=120
        ) as client:
            yield client, transport
    finally:
        following.cancel()
        await asyncio.wait([following])


async def until_running(tritons: int, gateways: int) -> None:
    """Wait until all are healthy, and nothing else runs."""

    async def running() -> bool:
        found = await asyncio.to_thread(
            docker, "stack", "services", "--format={{.Replicas}}", STACK
        )
        wanted = sorted([f"{tritons}/{tritons}", f"{gateways}/{gateways}"])
        return sorted(re.findall(r"\d+/\d+", found)) == wanted

    async with asyncio.timeout(300):
        while not await running():
            await asyncio.sleep(1)


async def ready(client: httpx.AsyncClient) -> None:
    """Wait until a gateway has every model."""

    async def is_ready() -> bool:
        return (await client.get("/ready")).status_code == 200

    await until(is_ready)
