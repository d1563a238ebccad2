"""Exports example checkpoints as `triptych export` does, all in one process: `make export`."""

import argparse
from pathlib import Path

import typer

from examples import CHECKPOINTS
from export.pipeline.cli import export

# Of two examples for one task, these serve the requests that name no model.
DEFAULTS = (
    "example-bert",
    "example-bert-sentiment",
    "example-bert-tags",
    "example-captioner",
    "example-clip",
    "example-es-en",
    "example-gpt",
    "example-vit",
)
WITH_ATTENTION = ("example-vit",)


def main() -> None:
    """Exports the named folders, or all examples."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    arguments = parser.parse_args()
    for folder in arguments.folders or examples():
        publish_example(folder, arguments.repository)


def examples() -> list[Path]:
    """The folders of all example checkpoints."""
    return sorted(CHECKPOINTS.glob("example-*"))


def publish_example(folder: Path, repository: Path) -> None:
    """Exports one folder, if its bundle is missing or stale.

    Raises:
        SystemExit: it cannot be exported; the reason is on stderr.
    """
    try:
        export(
            str(folder),
            repository=repository,
            default=folder.name in DEFAULTS or None,
            attention=folder.name in WITH_ATTENTION,
        )
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from ended


if __name__ == "__main__":
    main()
