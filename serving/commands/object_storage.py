"""`triptych push` and `triptych pull`: a model repository in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.object_storage import transfer
from serving.object_storage.transfer import open_store

Url = Annotated[
    str,
    typer.Argument(
        envvar="TRIPTYCH_REPOSITORY_URL",
        help="s3://BUCKET/PREFIX, gs://…, az://…, file:///FOLDER; settings: $AWS_… and the like.",
    ),
]
Folder = Annotated[
    Path, typer.Option("--repository", envvar="TRIPTYCH_REPOSITORY", help="Model repository.")
]
Bundles = Annotated[str, typer.Option(help="Names, comma-separated. Default: all.")]


def push(url: Url, *, repository: Folder = Path("model_repository"), bundles: Bundles = "") -> int:
    """Store the repository's complete bundles, with a list of their SHA-256 sums.

    \b
    triptych push s3://models/triptych
    AWS_ENDPOINT_URL=https://minio.example.org triptych push s3://models/triptych --bundles my-clip

    It prints the SHA-256 of the list, which `triptych pull --digest` can require.
    """
    done = transfer.push(open_store(url), repository, _names(bundles))
    typer.echo(f"{done.copied} files stored, {done.kept} were there", err=True)
    typer.echo(done.digest)
    return 0


def pull(
    url: Url,
    *,
    repository: Folder = Path("model_repository"),
    bundles: Bundles = "",
    without_graphs: Annotated[
        bool, typer.Option("--without-graphs", help="For gateways, which read no graphs.")
    ] = False,
    digest: Annotated[
        str | None,
        typer.Option(
            envvar="TRIPTYCH_REPOSITORY_DIGEST", help="SHA-256 that the list of sums must have."
        ),
    ] = None,
) -> int:
    """Bring stored bundles into the repository; each file must have its SHA-256.

    \b
    triptych pull s3://models/triptych --repository /models
    """
    done = transfer.pull(
        open_store(url), repository, _names(bundles), with_graphs=not without_graphs, digest=digest
    )
    typer.echo(f"{done.copied} files received, {done.kept} were there: {done.digest}", err=True)
    return 0


def _names(given: str) -> list[str]:
    return [name for name in given.split(",") if name]
