"""Bundles from the repository: manifests validated, files checked, versions in order."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pydantic import ValidationError

from inference.bundle.manifest import MANIFEST, Bundle, Manifest
from inference.errors import BundleError
from triptych.errors import one_line

FORMAT = 2

log = logging.getLogger(__name__)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of one version folder.

    Raises:
        BundleError: no manifest, not JSON, another format, or a field that does not fit.
    """
    path = folder / MANIFEST
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a complete bundle: it has no {MANIFEST}") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BundleError(f"cannot read {path}: {error}") from error
    if isinstance(fields, dict) and fields.get("format") != FORMAT:
        raise BundleError(
            f"{path} has format {fields.get('format')!r}, this version reads {FORMAT}: export again"
        )
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise BundleError(f"{path}: {one_line(error)}") from error


def open_bundle(folder: Path) -> Bundle:
    """A version folder as a bundle, every file that its manifest names present in its part.

    Raises:
        BundleError: the manifest is unreadable or of another bundle, or a file is missing.
    """
    manifest = read_manifest(folder)
    if manifest.name != folder.parent.name:
        raise BundleError(
            f"{folder / MANIFEST} is of {manifest.name!r}, the folder is {folder.parent.name!r}: "
            "rename the folder, or export again with --name"
        )
    repository = folder.parent.parent
    for key, graph in manifest.graphs.items():
        part = manifest.parts.get(key, manifest.name)
        _check_readable(repository / part / folder.name / graph.file)
    files = manifest.tokenizer.files.values() if manifest.tokenizer else ()
    for file in files:
        _check_readable(folder / file)
    return Bundle(folder, manifest)


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing: export again") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None


def versions(model_folder: Path) -> list[int]:
    """Version numbers below a model folder, newest first, complete or not."""
    if not model_folder.is_dir():
        return []
    numbers = (int(entry.name) for entry in model_folder.iterdir() if entry.name.isdecimal())
    return sorted((number for number in numbers if number > 0), reverse=True)


def newest_bundle(repository: Path, name: str) -> Bundle:
    """The newest complete version of a bundle; incomplete ones are skipped with one line.

    Raises:
        BundleError: no complete version.
    """
    for version in versions(repository / name):
        try:
            return open_bundle(repository / name / str(version))
        except BundleError as error:
            log.warning("skipped %s version %d: %s", name, version, error)
    raise BundleError(f"{repository / name} has no complete version: run `triptych export`")
