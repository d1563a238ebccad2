"""TCP ports, proved free before anything is started on them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from triptych.errors import TriptychError


def claim(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """A port for each name, 0 meaning any; all different, all free at this moment.

    Raises:
        TriptychError: A port is in use, or the address is not this machine's.
    """
    chosen = {}
    with ExitStack() as held:
        # Those asked for first, or a free choice could take one of them.
        for name, port in sorted(wanted.items(), key=lambda item: item[1] == 0):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OSError as error:
                reason = error.strerror or error
                raise TriptychError(f"cannot listen on {host}:{port} ({name}): {reason}") from None
            chosen[name] = int(listener.getsockname()[1])
    return {name: chosen[name] for name in wanted}
