"""How many connections a gateway can hold, by the limit on open files."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from inference.errors import SetupError

OWN = 256
"""Open files for bundles, Triton, metrics and images that are fetched; never left to clients."""
_DEFAULT_HTTP = 2048
_MOST_GRPC = 1024
_ENOUGH = 65_536
"""A higher limit is not used: some containers have 10⁹, which makes closing all files slow."""


@dataclass(frozen=True)
class Descriptors:
    """Open files of one process of a gateway.

    Attributes:
        open_files: In all.
        http_connections: Of them.
        grpc_connections: Of them.
    """

    open_files: int
    http_connections: int
    grpc_connections: int


def raise_limit() -> int:
    """Raise this process's limit on open files as far as it may; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= possible:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    return possible


def limit_connections(limit: int, max_connections: int | None) -> Descriptors:
    """The connections that a limit on open files allows.

    Args:
        limit: Open files of one process.
        max_connections: Over HTTP, if that is given.

    Raises:
        SetupError: the limit is too low.
    """
    free = limit - OWN
    http = max_connections or min(_DEFAULT_HTTP, free * 3 // 5)
    grpc = min(_MOST_GRPC, free - http)
    if http < 16 or grpc < 16:
        wanted = OWN + (max_connections or 32) + 16
        raise SetupError(
            f"at most {limit} files may be open, {wanted} are needed: raise the limit "
            "(ulimit -n, LimitNOFILE) or lower --max-connections"
        )
    return Descriptors(limit, http, grpc)
