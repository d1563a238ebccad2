"""Ports for a server: the wanted ones proved free, the others chosen."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from serving.errors import SetupError


def claim_ports(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """A free port for each name; 0 means any.

    All are held while choosing, so that they differ, and let go on return.

    Args:
        host: Address that the server will listen on.
        wanted: Port by what it is for ("HTTP").

    Raises:
        SetupError: a port is in use, or the address is not ours.
    """
    chosen: dict[str, int] = {}
    with ExitStack() as held:
        # Named ports first, or a free choice could take one of them.
        for purpose, port in sorted(wanted.items(), key=lambda item: item[1] == 0):
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen()
            except OSError as error:
                raise SetupError(
                    f"port {port} on {host} for Triton's {purpose} cannot be used "
                    f"({error.strerror}): stop what listens there, or choose another port"
                ) from None
            chosen[purpose] = listener.getsockname()[1]
    return chosen
