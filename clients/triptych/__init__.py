"""Triptych's public package: the messages of the API, the clients and the command line.

Names are imported on first use: `import triptych` loads none of them, and only the gRPC
clients load gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.client.base_client import Retries
    from triptych.client.grpc_client import AsyncGrpcClient, GrpcClient
    from triptych.client.http_client import AsyncClient, Client
    from triptych.errors import (
        ApiError,
        ConnectionFailed,
        DeadlineExceeded,
        InvalidArgument,
        InvalidRequest,
        InvalidResponse,
        NotFound,
        Overloaded,
        ServerError,
        Timeout,
        TriptychError,
        Unauthorized,
        Unavailable,
        UnreadableImage,
    )
    from triptych.images import Image

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncGrpcClient",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "GrpcClient",
    "Image",
    "InvalidArgument",
    "InvalidRequest",
    "InvalidResponse",
    "NotFound",
    "Overloaded",
    "Retries",
    "ServerError",
    "Timeout",
    "TriptychError",
    "Unauthorized",
    "Unavailable",
    "UnreadableImage",
    "__version__",
]

__version__ = "1.0.0"
"""Of the package, images, chart and service: `make proto` writes it into files that state it."""

_MODULES = {
    "AsyncClient": "client.http_client",
    "AsyncGrpcClient": "client.grpc_client",
    "Client": "client.http_client",
    "GrpcClient": "client.grpc_client",
    "Image": "images",
    "Retries": "client.base_client",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
