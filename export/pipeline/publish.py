"""From a staged bundle to the model repository: all of it or nothing.

Every subdirectory of a model repository is a model to Triton, hidden ones too, so bundles are
staged in a sibling folder on the same filesystem and renamed in. The part that holds the manifest
comes last: until then the version is incomplete, and no reader loads it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from export.triton_config import generator_config, stateless_config
from inference.bundle.manifest import MANIFEST, Manifest
from inference.bundle.reader import open_bundle, read_manifest, versions
from inference.bundle.repository import removable
from inference.errors import BundleError

KEPT_VERSIONS = 2
CONFIG = "config.pbtxt"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staging:
    """A folder beside the repository that holds one version of each part."""

    folder: Path

    def part(self, model: str) -> Path:
        """The version folder of one Triton model, made on first use."""
        folder = self.folder / model
        folder.mkdir(exist_ok=True)
        return folder


@contextmanager
def staging(repository: Path) -> Iterator[Staging]:
    """A staging folder on the repository's filesystem, removed afterwards."""
    repository.mkdir(parents=True, exist_ok=True)
    prefix = f".{repository.name}-staging-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=repository.resolve().parent) as folder:
        yield Staging(Path(folder))


def find_published(repository: Path, name: str, content_hash: str) -> int | None:
    """The newest complete version, if it has that content; then there is nothing to do."""
    for version in versions(repository / name):
        try:
            manifest = open_bundle(repository / name / str(version)).manifest
        except BundleError:
            continue  # half-written: not what a reader would load
        return version if manifest.source.content_hash == content_hash else None
    return None


def next_version(repository: Path, models: Mapping[str, str]) -> int:
    """A number above every version of every part, complete or not."""
    taken = [number for model in models.values() for number in versions(repository / model)]
    return max(taken, default=0) + 1


def publish(stage: Staging, repository: Path, manifest: Manifest) -> Path:
    """Renames a staged version into the repository and removes versions that are too old.

    The last two complete versions stay, and those that a supervisor serves. Folders and files get
    the repository folder's access rights, so that the serving user can read them whatever the
    exporter's umask.

    Returns:
        The version folder that holds the manifest.
    """
    owner = manifest.name
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    (stage.part(owner) / MANIFEST).write_text(text + "\n", encoding="utf-8")
    models = sorted(manifest.parts.values(), key=lambda model: model == owner)  # the owner last
    mode = stat.S_IMODE(repository.stat().st_mode)
    if mode & 0o005 != 0o005:
        log.warning(
            "%s can be read by user %d alone (mode %o): to serve it as another user, chmod o+rx",
            repository,
            repository.stat().st_uid,
            mode,
        )
    for model in models:
        folder = repository / model
        folder.mkdir(exist_ok=True)
        text = config(manifest, model)
        (stage.part(model) / CONFIG).write_text(text, encoding="utf-8")
        _share(stage.part(model), mode)
        folder.chmod(mode)
        _replace(folder / CONFIG, text, mode)
        _sync(stage.part(model))
        stage.part(model).rename(folder / str(manifest.version))
    _remove_old(repository, owner, models, manifest.version)
    return repository / owner / str(manifest.version)


def config(manifest: Manifest, model: str) -> str:
    """The text of one Triton model's `config.pbtxt`."""
    device = "cpu" if manifest.device == "cpu" else "cuda:0"
    if "step" in manifest.graphs:
        return generator_config(model, manifest.graphs.get("admit"), device)
    part = next(part for part, name in manifest.parts.items() if name == model)
    return stateless_config(
        model,
        manifest.graphs[part],
        device,
        runtime=manifest.runtime,
        precision=manifest.precision,
        placement=manifest.placement,
    )


def _share(folder: Path, mode: int) -> None:
    """Gives a version folder and its files the access rights of a folder with that mode."""
    folder.chmod(mode)
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _replace(path: Path, text: str, mode: int) -> None:
    """Writes a file so that a reader sees the old text or the new, never half."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(mode & 0o666)
    temporary.replace(path)


def _sync(folder: Path) -> None:
    """Puts a folder's files on disk before its name appears in the repository."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_old(repository: Path, owner: str, models: Sequence[str], newest: int) -> None:
    """Removes the versions below `newest` that are incomplete, or neither recent nor served."""
    folder = repository / owner
    complete = [v for v in versions(folder) if v <= newest and _is_complete(folder / str(v))]
    numbers = {version for model in models for version in versions(repository / model)}
    for version in numbers - set(complete[:KEPT_VERSIONS]):
        if version >= newest:
            continue
        with removable(folder / str(version)) as is_removable:
            # The owner first: a version without its manifest is incomplete, and no reader loads it.
            for model in reversed(models) if is_removable else ():
                shutil.rmtree(repository / model / str(version), ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except BundleError:
        return False
    return True
