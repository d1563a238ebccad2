"""Checkpoints in the formats of Hugging Face and open_clip: found, read and loaded strictly.

Nothing is guessed: every tensor of the file must have a place, every parameter of the model a
tensor of its shape. Only safetensors are read; pickles can run code, so they are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from export.checkpoint.foreign.formats import Converted, convert, is_foreign
from export.checkpoint.formats import (
    PICKLES,
    code_of,
    describe_other_weights,
    quantisation_notes,
    refuse_adapters,
)
from export.checkpoint.weight_files import INDEX, read_headers, read_tensors, tensor_names
from inference.errors import CheckpointError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPEN_CLIP = "open_clip"
"""`model_type` of a folder in open_clip's format, which names none."""
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
MODULES = "modules.json"
SENTENCE_SETTINGS = "config_sentence_transformers.json"
SENTENCES = "sentence_transformers"
"""Section of `config.json` for cross-encoders."""
HUB_FILES = ["*.json", "*.safetensors", "*.spm", "*.model", "*.txt", "*.jinja", "README.md"]
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_OPEN_CLIP_CONVERSION = (
    "convert it to safetensors first: load it with `open_clip` where you trust it and call "
    "`open_clip.push_to_hf_hub.save_for_hf`"
)


INSTRUCTION_TOKENIZER = "qformer_tokenizer"
"""Folder of a second tokenizer, for what an image encoder reads of a prompt."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder with weights, its `config.json` or `open_clip_config.json` read."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    revision: str | None = None
    location: str | None = None
    """Absolute path, or the name on the hub."""
    converted: Converted | None = None
    """What it was converted to from another library's format; `folder` is its folder."""

    def json(self, file: str) -> dict[str, Any]:
        """Another JSON file of the folder; empty if there is none.

        Raises:
            CheckpointError: not a JSON object.
        """
        path = self.folder / file
        return read_json(path) if path.is_file() else {}

    def modules(self) -> tuple[Mapping[str, str], ...]:
        """The modules of a `sentence_transformers` folder, in order; empty for other folders.

        Raises:
            CheckpointError: no list of modules with type and path.
        """
        return _read_modules(self.folder)

    def has(self, file: str) -> bool:
        """Whether the folder holds that file."""
        return (self.folder / file).is_file()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of every weight file, with its name.

        Raises:
            CheckpointError: a file is missing, damaged or truncated.
        """
        for path, expected in self._weight_files().items():
            yield from read_tensors(path, expected)

    def headers(self) -> Iterator[tuple[str, Tensor]]:
        """Shape and type of every tensor, on the device `meta`, with its name.

        Raises:
            CheckpointError: a file is missing, damaged or truncated.
        """
        for path, expected in self._weight_files().items():
            yield from read_headers(path, expected)

    def tensor_names(self) -> set[str]:
        """Names of the tensors of all weight files.

        Raises:
            CheckpointError: a file is missing, damaged or truncated.
        """
        return {
            name
            for path, expected in self._weight_files().items()
            for name in tensor_names(path, expected)
        }

    def notes(self) -> list[str]:
        """One line for each thing in the folder that is not what is exported.

        Raises:
            CheckpointError: an adapter is beside the weights, or they are quantised.
        """
        lines = list(self.converted.notes) if self.converted is not None else []
        lines += quantisation_notes(self.folder, self.config, self.headers())
        refuse_adapters(self.folder, (path.name for path in self.folder.glob("*")))
        for file in (CONFIG, "tokenizer_config.json", "preprocessor_config.json"):
            if (code := code_of(self.json(file))) is not None:
                lines.append(
                    f"{file} names code of the checkpoint's own ({code}), which is not run"
                )
        return lines

    @property
    def is_open_clip(self) -> bool:
        """Whether the folder is read in open_clip's format."""
        return self.config.get("model_type") == OPEN_CLIP

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over names and contents of the folder's files."""
        digest = hashlib.sha256()
        modules = (module["path"] for module in self.modules())
        folders = dict.fromkeys(["", INSTRUCTION_TOKENIZER, *modules])
        for path in (path for name in folders for path in _files(self.folder / name)):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _weight_files(self) -> dict[Path, set[str] | None]:
        """Weight files → the tensors that an index lists in them."""
        if self.is_open_clip and self.has(OPEN_CLIP_WEIGHTS):
            return {self.folder / OPEN_CLIP_WEIGHTS: None}
        if self.has(INDEX) and not self.is_open_clip:
            files: dict[Path, set[str] | None] = {}
            weight_map = self.json(INDEX).get("weight_map")
            if not isinstance(weight_map, dict):
                raise CheckpointError(f"{self.folder / INDEX} has no `weight_map`")
            for tensor, file in weight_map.items():
                path = inner_path(self.folder, str(file), INDEX)
                files.setdefault(path, set()).add(tensor)  # type: ignore[union-attr]
            return files
        if self.has(WEIGHTS) and not self.is_open_clip:
            return {self.folder / WEIGHTS: None}
        other = describe_other_weights(_names(self.folder, self.location, self.revision))
        if other is not None and self.is_open_clip and PICKLES in other:
            other = f"holds its weights in {PICKLES}: {_OPEN_CLIP_CONVERSION}"
        if other is not None:
            raise CheckpointError(f"{self.folder} {other}")
        expected = OPEN_CLIP_WEIGHTS if self.is_open_clip else f"{WEIGHTS} or {INDEX}"
        raise CheckpointError(f"{self.folder} has no weights: expected {expected}")


def open_checkpoint(source: str, revision: str | None = None) -> Checkpoint:
    """A folder, or a name on the Hugging Face hub, as a checkpoint.

    Args:
        revision: Commit on the hub; of a folder, None.

    Raises:
        CheckpointError: no such folder, the hub cannot be reached, a configuration is damaged, or a
            link leads out of the folder.
    """
    folder, commit = Path(source), None
    if is_foreign(folder):
        return _open_converted(folder, None, str(folder.resolve()))
    if folder.is_file():
        other = describe_other_weights([folder.name])
        raise CheckpointError(f"{source} {other or 'is a file: give the folder of the checkpoint'}")
    if not folder.is_dir():
        folder, commit = _download(source, revision)
        if is_foreign(folder):
            return _open_converted(folder, commit, source)
    if not any((folder / file).is_file() for file in (CONFIG, OPEN_CLIP_CONFIG)):
        other = describe_other_weights(_names(folder, source, commit))
        missing = f"is not a checkpoint: it has no {CONFIG} and no {OPEN_CLIP_CONFIG}"
        raise CheckpointError(f"{source} {other or missing}")
    refuse_outer_links(folder)
    name = folder.resolve().name if commit is None else source.rsplit("/", 1)[-1]
    location = str(folder.resolve()) if commit is None else source
    return Checkpoint(folder, name, _read_config(folder), commit, location)


def _open_converted(path: Path, commit: str | None, location: str) -> Checkpoint:
    """A folder or file in another library's format, as a checkpoint."""
    if path.is_dir():
        refuse_outer_links(path)
    with refusing_malformed(path, Exception):  # of the libraries that read the formats
        converted = convert(path)
    folder = converted.folder
    name = folder.name if commit is None else location.rsplit("/", 1)[-1]
    return Checkpoint(folder, name, _read_config(folder), commit, location, converted)


def _names(folder: Path, location: str | None, commit: str | None) -> list[str]:
    """Names of a checkpoint's files; on the hub also of those that are not downloaded."""
    names = [path.relative_to(folder).as_posix() for path in folder.glob("*")]
    names += [path.relative_to(folder).as_posix() for path in folder.glob("*/*")]
    if commit is not None:
        from huggingface_hub import list_repo_files

        with suppress(Exception):  # the hub's client raises what its transport raises
            names += list_repo_files(str(location), revision=commit)
    return names


def _read_config(folder: Path) -> dict[str, Any]:
    """`config.json`; what a `sentence_transformers` folder sets elsewhere takes precedence.

    Where it is missing or names no `model_type` (timm's copies of CLIP: it describes the image
    tower alone), the folder is in open_clip's format, if it holds that configuration.

    Its pooling reads the encoder alone, whatever head `architectures` names (all-mpnet-base-v2 is
    such a folder); its cross-encoders name their activation in a file of their own.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    _check_kinds(config)
    if "model_type" not in config and (folder / OPEN_CLIP_CONFIG).is_file():
        return read_json(folder / OPEN_CLIP_CONFIG) | {"model_type": OPEN_CLIP}
    if any(module["type"].endswith(".Pooling") for module in _read_modules(folder)):
        config["architectures"] = None
    settings = folder / SENTENCE_SETTINGS
    activation = read_json(settings).get("activation_fn") if settings.is_file() else None
    return config if activation is None else config | {SENTENCES: {"activation_fn": activation}}


def _check_kinds(config: Mapping[str, Any]) -> None:
    """Refuses lists of classes and sections, which many readers take, of another kind.

    Raises:
        CheckpointError: names the field.
    """
    classes = config.get("architectures")
    names = [] if classes is None else classes
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{CONFIG}: architectures must be a list of names, not {classes!r}")
    for name, section in config.items():
        if name.endswith("_config") and not isinstance(section, Mapping | None):
            raise CheckpointError(f"{CONFIG}: {name} must be an object, not {section!r}")


@contextmanager
def refusing_malformed(folder: Path, *further: type[Exception]) -> Iterator[None]:
    """Raises what reading a value of another kind raises as `CheckpointError`.

    Args:
        further: Exceptions beside those of Python's own types.

    Raises:
        CheckpointError: names the folder, and the reason where no reader has named the field.
    """
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{folder}: {place} = {first['input']!r}: {first['msg']}") from error
    except Exception as error:
        is_named = isinstance(error, CheckpointError)
        if is_named or not isinstance(error, (*_OF_MALFORMED, *further)):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        raise CheckpointError(
            f"{folder}: a file has a value that cannot be read ({reason}). If its files are sound, "
            "report this as an error of the export"
        ) from error


_OF_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def _read_modules(folder: Path) -> tuple[Mapping[str, str], ...]:
    path = folder / MODULES
    if not path.is_file():
        return ()
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        modules = tuple({"type": str(each["type"]), "path": str(each["path"])} for each in listed)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is no list of modules: {error!r}") from error
    for module in modules:
        inner_path(folder, module["path"], MODULES)
    return modules


def _files(folder: Path) -> list[Path]:
    """The files of a folder by name; none if there is no such folder."""
    return sorted(path for path in folder.glob("*") if path.is_file())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def _download(source: str, revision: str | None) -> tuple[Path, str]:
    """A hub checkpoint's local folder and its commit.

    Raises:
        CheckpointError: not a hub name, unknown, or no network.
    """
    if not _HUB_NAME.fullmatch(source):
        raise CheckpointError(f"{source} is not a folder, and cannot be a name on the hub")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises what its transport raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{source} is not a folder here, and the Hugging Face hub did not return it: {reason}"
        ) from error
    return folder, folder.name


def inner_path(folder: Path, name: str, origin: str) -> Path:
    """A file or folder that a file of the checkpoint names.

    Args:
        origin: The file that names it, for messages.

    Raises:
        CheckpointError: the name is absolute or leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"{folder / origin} names {name!r}, which is outside the checkpoint; only names inside "
            "its folder are read"
        )
    return folder / path


def refuse_outer_links(folder: Path) -> None:
    """Refuses links that lead out of a checkpoint folder.

    The folder itself may be a link. The files of a folder in the cache of the Hugging Face hub
    (`models--NAME/snapshots/COMMIT`) are links to `models--NAME/blobs`.

    Raises:
        CheckpointError: names the link, its target, and what to do.
    """
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in (*folders, *files)):
            if not path.is_symlink():
                continue
            target = path.resolve()
            if not any(target.is_relative_to(each) for each in allowed):
                raise CheckpointError(
                    f"{path} is a link to {target}, outside the checkpoint: copy the file into the "
                    "folder if it belongs to it, or remove the link"
                )
