"""A Triton that comes back under another address, as a container does."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.gateway.triton_client.triton_inference import TritonInference
from serving.ports import free_ports


class NameServer(asyncio.DatagramProtocol):
    """Answers every query for an address with `address`, all others with nothing."""

    address = "127.0.0.2"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        question, is_address = data[12:end], data[end - 4 : end - 2] == b"\0\1"
        counts = struct.pack("!HHHH", 1, int(is_address), 0, 0)
        answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(self.address)
        reply = data[:2] + b"\x81\x80" + counts + question + (answer if is_address else b"")
        self._transport.sendto(reply, addr)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)


async def serve(address: str, port: int) -> grpc.aio.Server:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    server.add_insecure_port(f"{address}:{port}")
    await server.start()
    return server


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, int]]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    yield protocol, transport.get_extra_info("sockname")[1]
    transport.close()


async def test_proxies_of_the_environment_do_not_reach_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    [port] = free_ports("127.0.0.1", {"gRPC": 0}).values()
    server = await serve("127.0.0.1", port)
    inference = TritonInference(f"127.0.0.1:{port}")
    try:
        assert await inference.is_ready("m", 1)
        stream = inference._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            service_pb2.ModelReadyRequest.SerializeToString,
            service_pb2.ModelReadyResponse.FromString,
        )
        assert (await stream(service_pb2.ModelReadyRequest(name="m"), timeout=5)).ready
    finally:
        await inference.close()
        await server.stop(None)


async def test_server_that_returns_under_another_address_is_found_within_ten_seconds(
    names: tuple[NameServer, int],
) -> None:
    name_server, name_port = names
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    first = await serve("127.0.0.2", port)
    inference = TritonInference(f"dns://127.0.0.1:{name_port}/triton.test:{port}")
    try:
        assert await inference.is_ready("m", 1)
        await first.stop(None)
        assert not await inference.is_ready("m", 1)
        name_server.address = "127.0.0.3"
        second = await serve("127.0.0.3", port)
        async with asyncio.timeout(10):
            while not await inference.is_ready("m", 1):
                await asyncio.sleep(0.1)
        await second.stop(None)
    finally:
        await inference.close()
