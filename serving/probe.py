"""Probes of a Triton container, for orchestrators: `python3 -m serving.probe [--live] [SOCKET]`.

Exits with 0, or with 1 and the reason. Ready: the server serves at least one model; its own
`/v2/health/ready` is true of a server without any. Live: the server responds, or its supervisor is
about to start it. Triton's HTTP endpoints have no port, so a probe runs beside it, as its user.
Standard library only: it starts often.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from serving.local_http import request

TIMEOUT_S = 4.0
# As `runtime_files` and `control_socket` name them, which import too much for a probe.
TEMPORARY = "/tmp"
HTTP_SOCKETS = "triptych_*_run/http"
CONTROL_SOCKETS = f"triptych-{os.getuid()}/*.sock"


def problem(server: Path | None = None) -> str | None:
    """Why a Triton server is not ready; None if it is.

    Args:
        server: Socket of its HTTP endpoints; None: of the servers of this user, any.
    """
    sockets = [server] if server else _find(HTTP_SOCKETS)
    problems = map(_problem, sockets)
    return next(
        (found for found in sorted(problems, key=bool)), "no tritonserver runs: see the log"
    )


def death(server: Path | None = None) -> str | None:
    """Why a Triton server needs a restart by an orchestrator; None if it does not.

    While there is no server, its supervisor is asked, which starts one: at its own start, after a
    crash, or when the repository can be read.

    Args:
        server: Socket of its HTTP endpoints; None: of the servers of this user, any. A socket on
            which nothing listens is of one that ended.
    """
    sockets = [server] if server else [*filter(_is_listening, _find(HTTP_SOCKETS))]
    failures = []
    for path in sockets:
        try:
            _get(path, "/v2/health/live")
        except OSError as error:
            failures.append(f"no response from {path}: {error}")
        else:
            return None
    if not failures and any(map(_is_listening, _find(CONTROL_SOCKETS))):
        return None
    return failures[0] if failures else "neither tritonserver nor its supervisor runs"


def _find(pattern: str) -> list[Path]:
    folders = {tempfile.gettempdir(), TEMPORARY}
    return sorted(path for folder in folders for path in Path(folder).glob(pattern))


def _problem(path: Path) -> str | None:
    try:
        _get(path, "/v2/health/ready")
        models = json.loads(_get(path, "/v2/models/stats"))["model_stats"]
    except OSError as error:
        return f"no response from {path}: {error}"
    return None if models else "no model is loaded"


def _get(path: Path, url: str) -> bytes:
    """The body of a successful response.

    Raises:
        OSError: there is none.
    """
    response = request(path, "GET", url, TIMEOUT_S)
    if not response.is_success:
        raise OSError(f"{url} returned {response.status}")
    return response.body


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        return connection.connect_ex(str(path)) == 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_liveness = "--live" in arguments
    sockets = [Path(each) for each in arguments if each != "--live"]
    found = (death if is_liveness else problem)(sockets[0] if sockets else None)
    sys.exit(found and f"not {'live' if is_liveness else 'ready'}: {found}")
