"""A gateway that still drains when the next one starts, as after its parent was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from inference.errors import SetupError
from serving.local_http import request
from serving.ports import free_ports, host_port, reachable

SHUTTING_DOWN = "the gateway is shutting down"
"""What `/ready` says of one that drains."""
_POLL_S = 0.2
_CLOSE_S = 10.0
"""From the end of its requests until it has closed its ports."""


def readiness(address: str) -> str | None:
    """Why the gateway at an address is not ready; None if it is.

    Raises:
        OSError: nothing responds there.
    """
    response = request(address, "GET", "/ready", timeout_s=1)
    if response.is_success:
        return None
    try:
        return str(json.loads(response.body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"it answered {response.status}"


def await_drained(host: str, ports: Mapping[str, int], say: Callable[[str], object]) -> None:
    """Wait while a gateway that is shutting down has our ports; it ends by its own time limits.

    Args:
        host: That both listen on.
        ports: By purpose, `http` among them; 0 is any.
        say: Called with one line if it waits.
    """
    if not ports["http"]:
        return
    address = host_port(reachable(host), ports["http"])
    until_s = None
    while True:
        if _is_draining(address):
            if until_s is None:
                say(f"waiting for a gateway that is shutting down on {address}")
            until_s = time.monotonic() + _CLOSE_S
        elif until_s is None or time.monotonic() > until_s or _are_free(host, ports):
            return
        time.sleep(_POLL_S)


def _is_draining(address: str) -> bool:
    try:
        return SHUTTING_DOWN in (readiness(address) or "")
    except OSError:
        return False


def _are_free(host: str, ports: Mapping[str, int]) -> bool:
    try:
        free_ports(host, dict(ports))
    except SetupError:
        return False
    return True
