"""The address of a Ray cluster, checked before Ray connects: Ray itself tries for ten minutes."""

from __future__ import annotations

import os
import re
import socket

from triptych.errors import InvalidArgument

_ADDRESS = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
_TIMEOUT_S = 5.0
"""To connect, and again to get the first bytes."""
_MAX_PORT = 65535
_SETTINGS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
"""A client's first bytes of HTTP/2, which Ray speaks as gRPC does (RFC 9113, section 3.4): the
preface and an empty frame of settings. A server answers with a frame of settings."""
_HEADER_BYTES = 9
"""Of a frame: length (3), type (1), flags (1), stream (4)."""
HINT = "give HOST:PORT of a running cluster's head (its --port, 6379 by default)"


def check_address(address: str) -> None:
    """Check that something at an address may be a Ray cluster.

    Args:
        address: HOST:PORT, or `auto`, which Ray resolves on this machine.

    Raises:
        InvalidArgument: the address has another form, or no Ray answers there.
    """
    if address == "auto":
        return
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) <= _MAX_PORT:
        raise InvalidArgument(f"--address: {address} is not HOST:PORT or auto: {HINT}")
    host, port = found["host"], int(found["port"])
    if (reason := _reason(host, port)) is not None:
        raise InvalidArgument(f"--address: no Ray at {address}: {reason}: {HINT}")


def _reason(host: str, port: int) -> str | None:
    """Why there is no Ray; None: there may be."""
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            if _uses_tls():
                return None
            connection.sendall(_GREETING)
            if _is_settings(_receive_header(connection)):
                return None
    except TimeoutError:
        return f"nothing came in {_TIMEOUT_S:.0f} s"
    except ConnectionRefusedError:
        return "no process listens on that port"
    except (ConnectionResetError, BrokenPipeError):
        pass
    except (socket.gaierror, UnicodeError):
        return f"the name {host} has no address"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "what listens on that port is not Ray"


def _receive_header(connection: socket.socket) -> bytes:
    """The header of the first frame; less, if the connection is closed before."""
    header = b""
    while len(header) < _HEADER_BYTES and (more := connection.recv(_HEADER_BYTES - len(header))):
        header += more
    return header


def _is_settings(header: bytes) -> bool:
    return len(header) == _HEADER_BYTES and header[3] == _SETTINGS and not any(header[5:])


def _uses_tls() -> bool:
    """Whether Ray encrypts, and answers no greeting that is not."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
