"""Checkpoints in the formats of Hugging Face and open_clip: found, read and loaded strictly.

Nothing is guessed: every tensor of the file must have a place, every parameter of the model a
tensor of its shape. Only safetensors are read; pickles can run code, so they are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.checkpoint.checkpoint_files import inner_path, refuse_outer_links
from export.checkpoint.weight_files import INDEX, read_headers, read_tensors, tensor_names
from export.config.weight_names import Rename
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
_CONVERSION = {
    False: "load it with `transformers` where you trust it and call `save_pretrained`",
    True: "load it with `open_clip` where you trust it and call "
    "`open_clip.push_to_hf_hub.save_for_hf`",
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


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
        if any(next(self.folder.glob(pattern), None) for pattern in _PICKLES):
            raise CheckpointError(
                f"{self.folder} holds its weights in a format that can run code when it is read; "
                f"convert it to safetensors first: {_CONVERSION[self.is_open_clip]}"
            )
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
    if not folder.is_dir():
        folder, commit = _download(source, revision)
    if not any((folder / file).is_file() for file in (CONFIG, OPEN_CLIP_CONFIG)):
        raise CheckpointError(
            f"{source} is not a checkpoint: it has no {CONFIG} and no {OPEN_CLIP_CONFIG}"
        )
    refuse_outer_links(folder)
    name = folder.resolve().name if commit is None else source.rsplit("/", 1)[-1]
    location = str(folder.resolve()) if commit is None else source
    return Checkpoint(folder, name, _read_config(folder), commit, location)


def _read_config(folder: Path) -> dict[str, Any]:
    """`config.json`; what a `sentence_transformers` folder sets elsewhere takes precedence.

    Where it is missing or names no `model_type` (timm's copies of CLIP: it describes the image
    tower alone), the folder is in open_clip's format, if it holds that configuration.

    Its pooling reads the encoder alone, whatever head `architectures` names (all-mpnet-base-v2 is
    such a folder); its cross-encoders name their activation in a file of their own.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if "model_type" not in config and (folder / OPEN_CLIP_CONFIG).is_file():
        return read_json(folder / OPEN_CLIP_CONFIG) | {"model_type": OPEN_CLIP}
    if any(module["type"].endswith(".Pooling") for module in _read_modules(folder)):
        config["architectures"] = None
    settings = folder / SENTENCE_SETTINGS
    activation = read_json(settings).get("activation_fn") if settings.is_file() else None
    return config if activation is None else config | {SENTENCES: {"activation_fn": activation}}


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


def load(model: nn.Module, checkpoint: Checkpoint, rename: Rename) -> None:
    """Fills a model with a checkpoint's tensors, as float32.

    Of a model on the device `meta` only names, shapes and types are compared: nothing is read.

    Raises:
        CheckpointError: lists every missing, unexpected and misshaped tensor at once.
    """
    early = _absent(checkpoint, rename)  # a vocabulary's table may be a fifth of the model
    for ours in early:
        tie(model, ours, rename.tied[ours])
    wanted = model.state_dict(keep_vars=True)  # tied weights under each of their names
    loaded: set[int] = set()  # tensors, by identity
    spare: list[tuple[str, str, Tensor]] = []
    problems: list[str] = []
    is_planned = any(tensor.is_meta for tensor in wanted.values())
    for name, tensor in checkpoint.headers() if is_planned else checkpoint.tensors():
        try:
            layout = rename.find(name)
        except KeyError:
            problems.append(f"unexpected: {name} {_shape(tensor)}")
            continue
        for ours, piece in layout.pieces(tensor):
            if layout.is_spare:
                spare.append((name, ours, piece))
            else:
                problems += _place(wanted, loaded, name, ours, piece)
    for name, ours, piece in spare:
        if id(wanted.get(ours)) not in loaded:
            problems += _place(wanted, loaded, name, ours, piece)
    loaded |= _tie(model, rename.tied, wanted, loaded)
    problems += [
        f"missing: {rename.origin(ours)} {_shape(tensor)}"
        for ours, tensor in wanted.items()
        if id(tensor) not in loaded and ours not in rename.optional and ours not in early
    ]
    if problems:
        listing = "\n  ".join(problems)
        config = OPEN_CLIP_CONFIG if checkpoint.is_open_clip else CONFIG
        raise CheckpointError(f"{checkpoint.folder} does not fit its {config}:\n  {listing}")


def _place(
    wanted: Mapping[str, Tensor], loaded: set[int], name: str, ours: str, piece: Tensor
) -> list[str]:
    """Copies one tensor to its target; the problems, if there are any."""
    target = wanted.get(ours)
    if target is None:
        return [f"unexpected: {name} {_shape(piece)}"]
    is_second = id(target) in loaded
    loaded.add(id(target))
    if target.shape != piece.shape:
        return [f"misshaped: {name} {_shape(piece)}, expected {_shape(target)}"]
    if not piece.is_floating_point():
        return [f"not floating point: {name} is {piece.dtype}; quantised files are not supported"]
    if piece.is_meta:
        return []
    if piece.itemsize == 1:
        piece = piece.float()  # there is little arithmetic of 8-bit numbers
    # without a copy in float32, which a vocabulary's table would double
    if piece.numel() and not all(value.float().isfinite() for value in piece.aminmax()):
        return [f"not finite: {name} holds NaN or infinity"]
    if is_second and not torch.equal(target, piece.float()):
        return [f"contradicting: {name} should be tied, but differs from its twin"]
    with torch.no_grad():
        target.copy_(piece)
    return []


def _absent(checkpoint: Checkpoint, rename: Rename) -> set[str]:
    """Parameters that are tied where a checkpoint leaves them out, and that this one does."""
    given: set[str] = set()
    for name in checkpoint.tensor_names() if rename.tied else ():
        with suppress(KeyError):  # reported when it is placed
            given.update(rename.find(name).targets)
    return set(rename.tied) - given


def _tie(
    model: nn.Module, tied: Mapping[str, str], wanted: Mapping[str, Tensor], loaded: set[int]
) -> set[int]:
    """Makes parameters that are missing or equal one with another; the identities of the former."""
    done: set[int] = set()
    for ours, other in tied.items():
        if wanted[ours] is wanted[other]:
            continue
        if id(wanted[ours]) in loaded and not _equal(wanted[ours], wanted[other]):
            continue
        tie(model, ours, other)
        done.add(id(wanted[ours]))
    return done


def _equal(one: Tensor, other: Tensor) -> bool:
    return not one.is_meta and torch.equal(one, other)


def tie(model: nn.Module, name: str, other: str) -> None:
    """Makes one parameter of a network the same tensor as another."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, model.get_parameter(other))


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


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
