"""Triton's own endpoints, and what other users of the machine can see and reach."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import socket
import stat
import time
from pathlib import Path

import psutil

from tests.attack.attack import (
    CLOSED,
    DECLARED,
    NO_ANSWER,
    Attack,
    Run,
    case,
    first_status,
    unprepared,
)

_CODE = "import os\nos.system('touch {marker}')\n"
_RESTART_S = 40


def _ports(attack: Attack) -> list[int]:
    """Ports on which `tritonserver` listens."""
    process = attack.target.triton()
    if process is None:
        return []
    listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    for each in listening:
        if each.laddr.ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
            attack.fail(f"tritonserver listens on {each.laddr.ip}:{each.laddr.port}")
    return [each.laddr.port for each in listening]


@case(
    "triton-chunks",
    "Triton's ports: a million chunks of one byte, six times, by a local user",
    finding=7,
    seconds=90,
    is_keyless=True,
    stops_models=True,
    answers=DECLARED | {"501"},
)
def _chunks(_: random.Random) -> Run:
    body = b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n"

    def run(attack: Attack) -> None:
        for _ in range(6):
            for port in _ports(attack):
                head = (
                    f"POST /v2/models/example-es-en/infer HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
                    "transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n"
                )
                attack.count(_send(port, head.encode() + body))
            time.sleep(2)
        end_s = time.monotonic() + _RESTART_S
        while _ready(attack) != 200:
            if time.monotonic() > end_s:
                attack.fail(f"not ready {_RESTART_S} s after the last one")
                break
            time.sleep(0.5)

    return run


def _send(port: int, content: bytes) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as made:
            made.sendall(content)
            return first_status(made, 5)
    except OSError as error:
        return NO_ANSWER if isinstance(error, TimeoutError) else CLOSED


def _ready(attack: Attack) -> int:
    made = http.client.HTTPConnection(attack.target.host, attack.target.port, timeout=10)
    try:
        made.request("GET", "/ready")
        return made.getresponse().status
    except OSError:
        return 0
    finally:
        made.close()


@unprepared(
    "triton-management",
    "Triton's ports: load code with all that another user can read of the processes",
    finding=8,
    is_keyless=True,
)
def _management(attack: Attack) -> None:
    process = attack.target.triton()
    secrets = {word for words in process.cmdline() for word in _pairs(words)}
    marker = attack.target.folder / "attacked"
    code = _CODE.format(marker=marker)
    config = {"backend": "python", "input": [], "output": []}
    body = {"parameters": {"config": json.dumps(config), "file:1/model.py": code}}
    for port in _ports(attack):
        for headers in ({}, *({name: value} for name, value in secrets)):
            attack.count(_post(port, "/v2/repository/models/evil/load", body, headers))
    if marker.exists():
        attack.fail("code was run")


def _pairs(argument: str) -> list[tuple[str, str]]:
    """Each `name=value` of an argument such as `--x=endpoints:name=value`."""
    words = argument.replace(":", " ").replace(",", " ").replace("=", " ").split()
    return list(itertools.pairwise(words))


def _post(port: int, path: str, body: object, headers: dict[str, str]) -> str:
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        made.request("POST", path, json.dumps(body), headers)
        return str(made.getresponse().status)
    except (ValueError, OSError, http.client.HTTPException):
        return CLOSED
    finally:
        made.close()


@unprepared(
    "local-users",
    "files, sockets, shared memory and environments that another user can read",
    finding=19,
    is_keyless=True,
    is_short=True,
)
def _local(attack: Attack) -> None:
    ours = psutil.Process(attack.target.pid)
    paths = [path for path in Path("/dev/shm").glob("triptych*") if _is_held(path, ours)]
    paths += [each for each in _sockets(ours) if each.exists()]
    folder = attack.target.folder / "glossaries"
    body = b'{"terms": {"a": "b"}}'
    made = http.client.HTTPConnection(attack.target.host, attack.target.port, timeout=5)
    made.request("PUT", "/v1/glossaries/private", body, {"content-type": "application/json"})
    attack.count(str(made.getresponse().status))
    made.close()
    paths += [folder] if folder.exists() else []
    for path in paths:
        if _is_open(path):
            attack.fail(f"{_shown(path)} is open to other users")
    for process in ours.children(recursive=True):
        if "TRIPTYCH_API_KEY" in process.environ() and "gateway" not in process.cmdline():
            attack.fail(f"{process.name()} has the key in its environment")


def _is_open(path: Path) -> bool:
    """Whether other users may reach and read a file or folder."""
    if not path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return False
    return all(each.stat().st_mode & stat.S_IXOTH for each in path.parents)


def _shown(path: Path) -> str:
    return path.name if path.parent == Path("/dev/shm") else str(path)


def _is_held(path: Path, process: psutil.Process) -> bool:
    found = path.stat()
    if found.st_uid != os.getuid():
        return False
    for each in (process, *process.children(recursive=True)):
        try:
            if str(path) in Path(f"/proc/{each.pid}/maps").read_text():
                return True
        except OSError:
            continue
    return False


def _sockets(process: psutil.Process) -> list[Path]:
    found = []
    for each in (process, *process.children(recursive=True)):
        connections = each.net_connections("unix")
        found += [Path(c.laddr) for c in connections if c.laddr and c.laddr.startswith("/")]
    return found
