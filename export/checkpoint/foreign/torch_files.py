"""PyTorch's `.pt` files, read without running code."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.checkpoint.foreign.conversion import TRANSLATOR, Vocabulary, open_archive
from export.config.weight_names import Names, Rename
from inference.errors import CheckpointError

_ALLOWED: list[Any] = [argparse.Namespace]
"""Beside tensors and Python's own types: options, as fairseq and OpenNMT-py store them."""


def load(path: Path) -> Mapping[str, Any]:
    """The dictionary of a checkpoint; tensors are views of the file where its format allows it.

    Raises:
        CheckpointError: damaged, or it holds objects that only code can restore.
    """
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        with open_archive(path):
            pass
    try:
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a version of pickle that it may not read
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        named = str(error).partition("Unsupported global: GLOBAL ")[2].split(maxsplit=1)
        reason = f"holds {named[0]}" if named else "is damaged, or holds objects"
        raise CheckpointError(
            f"{path} {reason}, which only code could restore, and no code of a checkpoint is run: "
            "load it with its library where you trust it, and save tensors, options and lists alone"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is damaged or truncated: {reason}") from error
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path} holds no dictionary")
    return found


def tensors_of(path: Path, values: object) -> dict[str, Tensor]:
    """A state dictionary.

    Raises:
        CheckpointError: it is none, or a tensor is larger than its bytes.
    """
    if not isinstance(values, Mapping) or not values:
        raise CheckpointError(f"{path} has no dictionary of tensors")
    for name, value in values.items():
        is_plain = isinstance(value, Tensor) and value.layout is torch.strided
        if not is_plain or value.nbytes > value.untyped_storage().nbytes():
            raise CheckpointError(f"{path}: {name} is no tensor whose numbers are in the file")
    return dict(values)


def options_of(values: object) -> dict[str, Any]:
    """Options from a namespace or a dictionary; empty for anything else."""
    if isinstance(values, argparse.Namespace):
        return vars(values)
    return dict(values) if isinstance(values, Mapping) else {}


def renamed(path: Path, tensors: Mapping[str, Tensor], table: Names) -> dict[str, Tensor]:
    """Tensors under the names of `transformers`.

    Raises:
        CheckpointError: the table lacks a name.
    """
    names = Rename(table)
    found: dict[str, Tensor] = {}
    for name, tensor in sorted(tensors.items()):
        try:
            found |= dict(names.find(name).pieces(tensor))
        except KeyError as error:
            raise CheckpointError(f"{path} has tensors of another network: {name}") from error
    return found


def completed(tensors: dict[str, Tensor], vocabulary: Vocabulary) -> dict[str, Tensor]:
    """A translator's tensors: one table where both are equal, its further row, biases of zero."""
    source, target = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    one, other = (tensors.get(name, torch.empty(0)) for name in (source, target))
    if one.shape == other.shape and one.equal(other):
        del tensors[source], tensors[target]
        tensors["model.shared.weight"] = one
    if "final_logits_bias" in tensors:
        tensors["final_logits_bias"] = vocabulary.extend(tensors["final_logits_bias"])[None]
    for name in (source, target, "model.shared.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = vocabulary.extend(tensors[name])
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        bias = name.removesuffix("weight") + "bias"
        tensors.setdefault(bias, torch.zeros(len(tensors[name])))
    return tensors


def sizes(
    path: Path, tensors: Mapping[str, Tensor], vocabulary: Vocabulary, heads: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of `config.json` that shapes and names of tensors give.

    Args:
        heads: Side → heads of each layer.
    """
    place = "model.encoder.embed_positions.weight"
    if place not in tensors or tensors[place].ndim != 2:
        raise CheckpointError(f"{path} has no table of positions")
    config: dict[str, Any] = {
        "model_type": TRANSLATOR,
        "is_encoder_decoder": True,
        "max_position_embeddings": tensors[place].shape[0],
        "d_model": tensors[place].shape[1],
        "vocab_size": vocabulary.rows(vocabulary.source),
        "decoder_vocab_size": vocabulary.rows(vocabulary.target),
        "normalize_embedding": "model.encoder.layernorm_embedding.weight" in tensors,
        "add_final_layer_norm": "model.encoder.layer_norm.weight" in tensors,
        "share_encoder_decoder_embeddings": "model.shared.weight" in tensors,
    }
    for side, count in heads.items():
        widths = [
            len(each)
            for name, each in tensors.items()
            if name.startswith(f"model.{side}.layers.") and name.endswith(".fc1.bias")
        ]
        config[f"{side}_layers"] = len(widths)
        config[f"{side}_ffn_dim"] = max(widths, default=0)
        config[f"{side}_attention_heads"] = count
    return config
