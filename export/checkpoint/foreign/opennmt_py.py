"""OpenNMT-py's checkpoints (`.pt`), beside which a sentencepiece model lies.

Names are those of OpenNMT-py (Klein et al. 2017, arXiv 1701.02810), `onmt/encoders/transformer.py`
and `onmt/decoders/transformer.py`, the vocabularies those of its version 3; norms are in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from export.checkpoint.foreign.conversion import Conversion, Vocabulary, sentencepiece_models, shown
from export.checkpoint.foreign.torch_files import (
    completed,
    load,
    options_of,
    renamed,
    sizes,
    tensors_of,
)
from export.config.weight_names import Names
from inference.errors import CheckpointError

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "fast_gelu": "gelu_new"}
_REQUIRED: dict[str, tuple[object, ...]] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot",),
    "position_encoding": (True,),
    "max_relative_positions": (0,),
    "multiquery": (False,),
    "num_kv": (0,),
    "parallel_residual": (False,),
    "layer_norm": ("standard",),
}
"""Option → what our network computes; an absent one has the first value."""


def _table() -> Names:
    """OpenNMT-py's names → those of `transformers`."""
    table: Names = {"generator.weight": "lm_head.weight", "generator.bias": "final_logits_bias"}
    leaves = {"query": "q_proj", "keys": "k_proj", "values": "v_proj"}
    linear = {f"linear_{theirs}": ours for theirs, ours in leaves.items()}
    linear["final_linear"] = "out_proj"
    for side, stack in (("encoder", "transformer"), ("decoder", "transformer_layers")):
        inner = f"{side}.embeddings.make_embedding"
        layer, ours = f"{side}.{stack}.*", f"model.{side}.layers.*"
        norms = ("layer_norm",) if side == "encoder" else ("layer_norm_1", "layer_norm_2")
        attentions = {"self_attn": "self_attn", "context_attn": "encoder_attn"}
        for (theirs, own), norm in zip(attentions.items(), norms, strict=False):
            table |= {f"{layer}.{theirs}.{a}": f"{ours}.{own}.{b}" for a, b in linear.items()}
            table[f"{layer}.{norm}"] = f"{ours}.{own}_layer_norm"
        table |= {
            f"{inner}.emb_luts.0": f"model.{side}.embed_tokens",
            f"{inner}.pe.pe": f"model.{side}.embed_positions.weight",
            f"{side}.layer_norm": f"model.{side}.layer_norm",
            f"{layer}.feed_forward.w_1": f"{ours}.fc1",
            f"{layer}.feed_forward.w_2": f"{ours}.fc2",
            f"{layer}.feed_forward.layer_norm": f"{ours}.final_layer_norm",
        }
    return table


def is_folder(folder: Path) -> bool:
    """Whether a folder may be OpenNMT-py's: one `.pt` file and a sentencepiece model."""
    has_config = (folder / "config.json").is_file()
    is_one = len(list(folder.glob("*.pt"))) == 1
    return is_one and not has_config and sentencepiece_models([folder]) is not None


def convert(folder: Path) -> Conversion:
    """A folder of OpenNMT-py's.

    Raises:
        CheckpointError: it is damaged, or holds what our network cannot compute.
    """
    path = next(folder.glob("*.pt"))
    checkpoint = load(path)
    options = options_of(checkpoint.get("opt"))
    if not options:
        raise CheckpointError(f"{path} is no checkpoint of OpenNMT-py: it has no options (opt)")
    for name, supported in _REQUIRED.items():
        if (value := options.get(name, supported[0])) not in supported:
            raise CheckpointError(f"{path}: {name} = {shown(value)} is not supported")
    activation = options.get("pos_ffn_activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path}: pos_ffn_activation_fn = {shown(activation)} is not supported"
        )
    vocabulary = _vocabulary(path, checkpoint.get("vocab"), options)
    output = tensors_of(path, checkpoint.get("generator"))
    given = tensors_of(path, checkpoint.get("model"))
    given |= {f"generator.{name.removeprefix('0.')}": each for name, each in output.items()}
    tensors = renamed(path, given, _table())
    for name in [name for name in tensors if name.endswith("embed_positions.weight")]:
        tensors[name] = tensors[name].flatten(0, -2)  # (positions, 1, D)
    tensors = completed(tensors, vocabulary)
    heads = options.get("heads", 8)
    config = sizes(path, tensors, vocabulary, {"encoder": heads, "decoder": heads}) | {
        "activation_function": _ACTIVATIONS[activation],
        "scale_embedding": True,
        "normalize_before": True,
        "layer_norm_eps": options.get("norm_eps", 1e-6),
    }
    pieces = sentencepiece_models([folder])
    assert pieces is not None, "is_folder found them"
    files = vocabulary.files(pieces, None)
    return Conversion(config, vocabulary.generation(), tensors.items(), files)


def _vocabulary(path: Path, given: object, options: Mapping[str, Any]) -> Vocabulary:
    source, target = (
        given.get(side) if isinstance(given, Mapping) else None for side in ("src", "tgt")
    )
    for side in (source, target):
        if not isinstance(side, list) or not all(isinstance(token, str) for token in side):
            raise CheckpointError(f"{path}: vocab has no lists of tokens (OpenNMT-py 3)")
    start = str(options.get("decoder_start_token", "<s>"))
    return Vocabulary(source or [], target or [], start=start, adds_end=False)
