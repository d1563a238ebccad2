"""Flags that all commands of the API share, and the client that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from triptych import Client, GrpcClient

# The command line is the edge: the environment is read here and nowhere in the clients.
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="TRIPTYCH_URL", help="Gateway: http://HOST:PORT or grpc://HOST:PORT."
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="TRIPTYCH_API_KEY", help="Key, if the gateway requires one."),
]
TimeoutS = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds for one request.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the response as JSON.")]

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 60.0

AnyClient: TypeAlias = "Client | GrpcClient"


def connect(url: str, api_key: str | None, timeout_s: float) -> AnyClient:
    """The client for a URL's scheme; nothing is sent yet."""
    import triptych

    if url.startswith("grpc://"):
        return triptych.GrpcClient(url.removeprefix("grpc://"), api_key=api_key, timeout=timeout_s)
    return triptych.Client(url, api_key=api_key, timeout=timeout_s)
