"""A running service connects to its own processes and nowhere else, and leaves nothing behind.

Two ways to see that, neither complete. Open sockets of all processes (`/proc`) show every protocol,
but a connection that opens and closes between two looks is missed. System calls (`strace`, where it
is installed) show every `connect` from the start on, native code's included, but no datagram that
is sent without one. ONNX Runtime's telemetry first connects after half a minute; a test that ends
sooner sees it by its files in HOME.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from examples.demo.encoders import PICTURES
from tests.e2e import conftest
from tests.e2e.conftest import PROGRAM, Stack, running
from tests.e2e.workload import descendants, mapped_memory, shared_memory, shm_prefix
from triptych import Client

pytestmark = pytest.mark.integration

PICTURE = PICTURES / "scene-1.png"
ADDRESS = re.compile(r'inet(?:_addr\(|_pton\(AF_INET6, )"([^"]+)"')
TELEMETRY_S = 40


def use(stack: Stack) -> None:
    """A request to an engine and one to a stateless model."""
    with Client(stack.url, timeout=60) as client:
        assert client.translate("el mundo no es suficiente").data[0].text
        assert client.zero_shot(PICTURE, labels=["red", "blue"]).data[0].labels


def family(stack: Stack) -> list[psutil.Process]:
    first = psutil.Process(stack.process.pid)
    return [first, *first.children(recursive=True)]


def foreign(addresses: set[str]) -> set[str]:
    return {one for one in addresses if not is_loopback(one)}


def is_loopback(address: str) -> bool:
    """Also of IPv4 in IPv6 (`::ffff:127.0.0.1`)."""
    parsed = ip_address(address.partition("%")[0])
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


@contextmanager
def peers(stack: Stack) -> Iterator[set[str]]:
    """Remote addresses of all sockets of all processes, as far as seen until the end."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in family(stack):
                try:
                    sockets = process.net_connections("inet")
                except psutil.Error:
                    continue
                seen.update(socket.raddr.ip for socket in sockets if socket.raddr)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_sockets_and_files_show_no_foreign_peer_and_nothing_is_left(
    both_backends: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with running(both_backends, tmp_path, HOME=home) as stack, peers(stack) as seen:
        own, mapped = shm_prefix(stack), mapped_memory(stack)
        assert set(shared_memory(own)) & mapped, "every model's process has a region"
        for _ in range(5):
            use(stack)
        processes = descendants(stack.process.pid)
        environments = [process.environ() for process in family(stack)]
        names = {process.name() for process in family(stack)}
    assert "tritonserver" in names
    assert seen, "no connection was seen, not even ours"
    assert foreign(seen) == set()
    assert [path for path in home.rglob("*") if path.is_file()] == []
    models = [one for one in environments if "triton_python_backend" in str(one)]
    assert all(one.get("ORT_DISABLE_TELEMETRY") == "1" for one in models)
    assert len(processes) >= 6, "gateway, triton's parent, triton and the models' processes"
    assert not {pid for pid in processes if Path(f"/proc/{pid}").exists()}
    assert not shared_memory(own)
    assert not {path for path in mapped if path.exists()}


@pytest.mark.full
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_system_calls_show_no_foreign_peer(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    watched = ("strace", "-D", "-f", "-qq", "-e", "trace=connect", "-o", str(trace), *PROGRAM)
    monkeypatch.setattr(conftest, "PROGRAM", watched)
    with running(repository, tmp_path, HOME=tmp_path / "home") as stack:
        deadline = time.monotonic() + TELEMETRY_S
        while time.monotonic() < deadline:
            use(stack)
            time.sleep(2)
    addresses = set(ADDRESS.findall(trace.read_text()))
    assert addresses, "no connection was seen, not even ours"
    assert foreign(addresses) == set()
