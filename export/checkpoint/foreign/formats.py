"""The formats that are converted, found by what a folder holds, or by a file's name."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint.foreign import (
    argos,
    ctranslate2_model,
    fairseq_model,
    marian_npz,
    opennmt_py,
    timm_model,
)
from export.checkpoint.foreign.conversion import CONFIG, Conversion, read_object


@dataclass(frozen=True)
class _Format:
    """One format.

    Attributes:
        name: For people.
        matches: Whether a folder is in it.
        convert: A folder's conversion.
    """

    name: str
    matches: Callable[[Path], bool]
    convert: Callable[[Path], Conversion]


_FORMATS = (
    _Format("Argos Translate's package", argos.is_folder, argos.convert),
    _Format("CTranslate2's format", ctranslate2_model.is_folder, ctranslate2_model.convert),
    _Format("Marian's format", marian_npz.is_folder, marian_npz.convert),
    _Format("fairseq's format", fairseq_model.is_folder, fairseq_model.convert),
    _Format("OpenNMT-py's format", opennmt_py.is_folder, opennmt_py.convert),
    _Format("timm's format", timm_model.is_folder, timm_model.convert),
)


@dataclass(frozen=True)
class Converted:
    """A folder in Hugging Face format, which lasts as long as this object.

    Attributes:
        folder: The folder.
        notes: One line for each thing that differs from what was read.
    """

    folder: Path
    notes: tuple[str, ...]


def is_foreign(path: Path) -> bool:
    """Whether a folder, or a file, is in one of the formats, and not in Hugging Face's too."""
    if path.is_file():
        return path.suffix == argos.SUFFIX
    is_found = any(each.matches(path) for each in _FORMATS)
    return is_found and read_object(path / CONFIG).get("model_type") in (None, timm_model.WRAPPER)


def convert(path: Path) -> Converted:
    """Converts a folder, or a file, that `is_foreign`.

    Raises:
        CheckpointError: it is damaged, or its network is not supported.
    """
    place = Path(tempfile.mkdtemp(prefix="triptych-checkpoint-"))
    try:
        converted = _convert(path, place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    weakref.finalize(converted, shutil.rmtree, place, ignore_errors=True)
    return converted


def _convert(path: Path, place: Path) -> Converted:
    resolved = path.resolve()
    folder = place / "converted" / (resolved.stem if path.is_file() else resolved.name)
    folder.mkdir(parents=True)
    source = argos.unpack(path, place / "unpacked") if path.is_file() else path
    found = next(each for each in _FORMATS if each.matches(source))
    conversion = found.convert(source)
    conversion.write(
        folder, sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    )
    return Converted(folder, (f"the checkpoint was converted from {found.name}", *conversion.notes))
