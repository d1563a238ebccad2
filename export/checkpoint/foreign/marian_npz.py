"""Marian's folders, as OPUS-MT releases them: `decoder.yml`, an `.npz`, vocabularies.

Names of arrays and networks are those of Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344),
positions and the epsilon of norms as `transformers` and CTranslate2 read such files.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from export.checkpoint.foreign.conversion import (
    TRANSLATOR,
    Conversion,
    Vocabulary,
    open_archive,
    sentencepiece_models,
    shown,
)
from inference.errors import CheckpointError

DECODER = "decoder.yml"
_OPTIONS = "special:model.yml"
_ACTIVATIONS = {"swish": "silu", "relu": "relu", "gelu": "quick_gelu"}
"""Marian's GELU is x · sigmoid(1.702 x)."""
_POSITIONS = 512
_REQUIRED: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "transformer-preprocess": ("", "n"),
    "transformer-postprocess-emb": ("", "d", "n", "nd"),
    "input-types": ([], ["sequence"]),
}
"""Option → what our network computes; an absent one has Marian's default, which is among it."""
_PIECES = (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj"))
_ENTRY = re.compile(r"(.*):\s+(\d+)\s*")


def is_folder(folder: Path) -> bool:
    """Whether a folder is Marian's."""
    return (folder / DECODER).is_file()


def convert(folder: Path) -> Conversion:
    """A folder of Marian's.

    Raises:
        CheckpointError: it is damaged, or holds what our network cannot compute.
    """
    decoder = _read_yaml((folder / DECODER).read_bytes(), DECODER)
    models = [_inner(folder, name) for name in decoder.get("models") or ()]
    if len(models) != 1 or models[0].suffix != ".npz":
        raise CheckpointError(
            f"{folder / DECODER}: one model in .npz is read, not "
            f"{', '.join(path.name for path in models)}: the 8-bit .bin files of Bergamot and "
            "Firefox, and ensembles, are not; export the .npz that they were made from"
        )
    paths = [_inner(folder, name) for name in decoder.get("vocabs") or ()]
    if not paths:
        raise CheckpointError(f"{folder / DECODER} names no vocabularies")
    pieces = sentencepiece_models([folder])
    if paths[0].suffix == ".spm":
        pieces = paths[0].read_bytes(), paths[-1].read_bytes()
    if pieces is None:
        raise CheckpointError(
            f"{folder} has no source.spm and target.spm: vocabularies of subword-nmt (.bpe), whose "
            "words Moses' scripts divide, are not read"
        )
    vocabulary = Vocabulary(_read_tokens(paths[0]), _read_tokens(paths[-1]), start=None)
    with open_archive(models[0]) as archive:
        model = _Model(models[0], archive, vocabulary)
        tensors = list(model.tensors())
    search = {"num_beams": "beam-size", "length_penalty": "normalize"}
    given = {ours: decoder[name] for ours, name in search.items() if decoder.get(name)}
    return Conversion(
        model.config(), vocabulary.generation() | given, tensors, vocabulary.files(pieces, None)
    )


class _Model:
    """One `.npz`, its arrays by name and its options."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, vocabulary: Vocabulary) -> None:
        self.path = path
        self.archive = archive
        self.vocabulary = vocabulary
        self.left = {name.removesuffix(".npy") for name in archive.namelist()}
        self.options = _read_yaml(self._array(_OPTIONS).tobytes().rstrip(b"\0"), path.name)
        for name, supported in _REQUIRED.items():
            if (value := self.options.get(name, supported[0])) not in supported:
                raise CheckpointError(f"{path}: {name} = {shown(value)} is not supported")
        forms = ("", "dan", ""), ("n", "da", "n")
        names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
        form = tuple(self.options.get(name) or "" for name in names)
        if form not in forms:
            given = ", ".join(map(shown, form))
            raise CheckpointError(f"{path}: {', '.join(names)} = {given}, not one of {forms}")
        self.is_norm_first = form == forms[1]

    @cached_property
    def has_embedding_norm(self) -> bool:
        """Whether a norm follows the embeddings."""
        return "n" in self.options.get("transformer-postprocess-emb", "d")

    @cached_property
    def has_one_table(self) -> bool:
        """Whether source and target share a table."""
        return "Wemb.npy" in self.archive.namelist()

    def config(self) -> dict[str, Any]:
        """`config.json`."""
        options, vocabulary = self.options, self.vocabulary
        width = options["transformer-dim-ffn"]
        activation = options.get("transformer-ffn-activation", "swish")
        if activation not in _ACTIVATIONS:
            raise CheckpointError(f"{self.path}: activation {shown(activation)} is not supported")
        heads = options.get("transformer-heads", 8)
        return {
            "model_type": TRANSLATOR,
            "is_encoder_decoder": True,
            "d_model": options["dim-emb"],
            "vocab_size": vocabulary.rows(vocabulary.source),
            "decoder_vocab_size": vocabulary.rows(vocabulary.target),
            "activation_function": _ACTIVATIONS[activation],
            "scale_embedding": True,
            "max_position_embeddings": _POSITIONS,
            "normalize_before": self.is_norm_first,
            "normalize_embedding": self.has_embedding_norm,
            "add_final_layer_norm": self.is_norm_first,
            "layer_norm_eps": 1e-5,
            "share_encoder_decoder_embeddings": self.has_one_table,
            "encoder_layers": options["enc-depth"],
            "decoder_layers": options["dec-depth"],
            "encoder_attention_heads": heads,
            "decoder_attention_heads": options.get("transformer-decoder-heads") or heads,
            "encoder_ffn_dim": width,
            "decoder_ffn_dim": options.get("transformer-decoder-dim-ffn") or width,
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names of `transformers` and values.

        Raises:
            CheckpointError: an array is missing, or there are others.
        """
        extend = self.vocabulary.extend
        if self.has_one_table:
            yield "model.shared.weight", extend(table := self._tensor("Wemb"))
        else:
            yield "model.encoder.embed_tokens.weight", extend(self._tensor("encoder_Wemb"))
            table = self._tensor("decoder_Wemb")
            yield "model.decoder.embed_tokens.weight", extend(table)
        output = "decoder_ff_logit_out"
        if f"{output}_W" in self.left:
            table = self._tensor(f"{output}_W").T
        elif f"{output}_Wt" in self.left:
            table = self._tensor(f"{output}_Wt")
        yield "lm_head.weight", extend(table)
        yield "final_logits_bias", extend(self._tensor(f"{output}_b").flatten())[None]
        for side, key in (("encoder", "enc-depth"), ("decoder", "dec-depth")):
            if self.has_embedding_norm:
                yield from self._norm(f"{side}_emb", f"model.{side}.layernorm_embedding")
            if self.is_norm_first:
                yield from self._norm(f"{side}_top", f"model.{side}.layer_norm")
            for number in range(int(self.options[key])):
                yield from self._layer(f"{side}_l{number + 1}", f"model.{side}.layers.{number}")
        if left := sorted(name for name in self.left if not name.startswith("special:")):
            raise CheckpointError(f"{self.path} has arrays of another network: {left[:3]}")

    def _layer(self, scope: str, layer: str) -> Iterator[tuple[str, Tensor]]:
        attentions = {"self": "self_attn"}
        if scope.startswith("decoder"):
            attentions["context"] = "encoder_attn"
        for name, ours in attentions.items():
            for leaf, own in _PIECES:
                yield from self._linear(f"{scope}_{name}", leaf, f"{layer}.{ours}.{own}")
            yield from self._norm(f"{scope}_{name}_Wo", f"{layer}.{ours}_layer_norm")
        for leaf in "12":
            yield from self._linear(f"{scope}_ffn", leaf, f"{layer}.fc{leaf}")
        yield from self._norm(f"{scope}_ffn_ffn", f"{layer}.final_layer_norm")

    def _linear(self, scope: str, leaf: str, name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", self._tensor(f"{scope}_W{leaf}").T
        yield f"{name}.bias", self._tensor(f"{scope}_b{leaf}").flatten()

    def _norm(self, scope: str, name: str) -> Iterator[tuple[str, Tensor]]:
        end = "_pre" if f"{scope}_ln_scale_pre" in self.left else ""
        for theirs, leaf in (("scale", "weight"), ("bias", "bias")):
            yield f"{name}.{leaf}", self._tensor(f"{scope}_ln_{theirs}{end}").flatten()

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self._array(name).astype(np.float32))

    def _array(self, name: str) -> NDArray[Any]:
        """An array, and its name taken from `left`."""
        if name not in self.left:
            raise CheckpointError(f"{self.path} has no array {name}")
        self.left.discard(name)
        with self.archive.open(f"{name}.npy") as file:
            return _read_array(self.path, name, file)


def _read_array(path: Path, name: str, file: IO[bytes]) -> NDArray[Any]:
    """An array of numbers; memory is that of the bytes that are there."""
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    shape, is_fortran, dtype = read(file)  # type: ignore[no-untyped-call]
    content = file.read()
    if dtype.kind not in "fi" or len(content) != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path} is damaged: {name} of {dtype}, {shape} in {len(content)}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")


def _inner(folder: Path, name: object) -> Path:
    """A file of the folder, whatever folder is written before its name."""
    path = folder / PurePosixPath(str(name)).name
    if not path.is_file():
        raise CheckpointError(f"{folder / DECODER} names {path.name}, which is not there")
    return path


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Without merge keys, of which a few lines may stand for more than memory holds."""

    def flatten_mapping(self, node: Any) -> None:
        """Leaves them, so that they are refused."""


def _read_yaml(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        value = yaml.load(content, _Loader)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise CheckpointError(f"{name} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} holds no options")
    return value


def _read_tokens(path: Path) -> list[str]:
    """The tokens of a vocabulary in the order of their ids.

    PyYAML leaves out entries that Marian reads (a token may be a line separator), so that lines are
    read as they are.
    """
    if path.suffix == ".spm":
        pieces = SentencePieceProcessor(model_proto=path.read_bytes())
        return [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]
    content = path.read_text(encoding="utf-8").replace("\n: ", ": ")
    found: dict[int, str] = {}
    for line in filter(None, content.split("\n")):
        entry = _ENTRY.fullmatch(line.removesuffix("\r").removeprefix("? "))
        if entry is None:
            raise CheckpointError(f"{path}: {line[:80]!r} is no token with its id")
        found[int(entry[2])] = _unquoted(entry[1])
    if sorted(found) != list(range(len(found))):
        raise CheckpointError(f"{path}: ids are not those from 0 to {len(found) - 1}")
    return [found[number] for number in range(len(found))]


def _unquoted(token: str) -> str:
    """The text of a key in YAML."""
    if token[:1] == "'" and token[-1:] == "'":
        return token[1:-1].replace("''", "'")
    if token[:1] != '"' or token[-1:] != '"':
        return token
    return str(yaml.safe_load(token)) if "\\" in token else token[1:-1]
