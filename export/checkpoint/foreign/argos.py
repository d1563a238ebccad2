"""Argos Translate's packages: `NAME.argosmodel`, a zip archive, or the folder it was unpacked to.

A package holds `metadata.json`, a model of CTranslate2's in `model/`, and a sentencepiece model.
Format: `argostranslate/package.py`; its models of sentence boundaries are not read.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

from export.checkpoint.foreign import ctranslate2_model
from export.checkpoint.foreign.conversion import Conversion, open_archive, read_object
from inference.errors import CheckpointError

SUFFIX = ".argosmodel"
METADATA = "metadata.json"
MODEL = "model"
_READ = (METADATA, "sentencepiece.model", "bpe.model", f"{MODEL}/*")
_SEARCH = {"num_beams": 4, "length_penalty": 0.2}
"""Of `argostranslate/translate.py`."""


def is_folder(folder: Path) -> bool:
    """Whether a folder is an unpacked package."""
    return (folder / METADATA).is_file() and (folder / MODEL / ctranslate2_model.WEIGHTS).is_file()


def convert(folder: Path) -> Conversion:
    """An unpacked package.

    Raises:
        CheckpointError: it is no translator of one pair of languages, or damaged.
    """
    metadata = read_object(folder / METADATA)
    kind, prefix = metadata.get("type", "translate"), metadata.get("target_prefix") or ""
    pair = metadata.get("from_code"), metadata.get("to_code")
    if kind != "translate" or prefix or not all(isinstance(code, str) and code for code in pair):
        raise CheckpointError(
            f"{folder / METADATA}: only packages of type translate with from_code, to_code and no "
            f"target_prefix are read, not {kind!r} with {pair[0]!r}, {pair[1]!r} and {prefix!r}"
        )
    if not (folder / "sentencepiece.model").is_file():
        raise CheckpointError(
            f"{folder} has no sentencepiece.model: packages with bpe.model, whose words Moses' "
            "scripts divide, are not read"
        )
    conversion = ctranslate2_model.convert(folder / MODEL, folder, (str(pair[0]), str(pair[1])))
    conversion.generation = {**conversion.generation, **_SEARCH}
    return conversion


def unpack(package: Path, into: Path) -> Path:
    """Unpacks what is read of a package; the folder of its metadata.

    Raises:
        CheckpointError: no archive, damaged, larger than one of its size can be, or with names
            outside it.
    """
    with open_archive(package) as archive:
        for path, entry in _entries(package, archive).items():
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as file, target.open("wb") as copy:
                shutil.copyfileobj(file, copy)
    return into


def _entries(package: Path, archive: zipfile.ZipFile) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """Path within the package's folder → entry, of files that are read."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    paths = {PurePosixPath(entry.filename): entry for entry in entries}
    for path, entry in paths.items():
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or is_link:
            raise CheckpointError(
                f"{package} holds {entry.filename!r}, a link or a path outside it"
            )
    roots = sorted((path.parent for path in paths if path.name == METADATA), key=_depth)
    if not roots:
        raise CheckpointError(f"{package} has no {METADATA}: it is no package of Argos Translate")
    inner = {
        path.relative_to(roots[0]): entry
        for path, entry in paths.items()
        if path.is_relative_to(roots[0])
    }
    if PurePosixPath(MODEL, ctranslate2_model.WEIGHTS) not in inner:
        raise CheckpointError(f"{package} has no {MODEL}/{ctranslate2_model.WEIGHTS}")
    return {path: each for path, each in inner.items() if any(map(path.match, _READ))}


def _depth(path: PurePosixPath) -> int:
    return len(path.parts)
