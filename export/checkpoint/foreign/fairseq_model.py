"""fairseq's checkpoints (`.pt`), beside which `dict.*.txt` and a sentencepiece model lie.

Names are those of fairseq (Ott et al. 2019, arXiv 1904.01038), `fairseq/models/transformer`, which
are those of `transformers` too; positions and vocabularies are counted as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from export.checkpoint.foreign.conversion import (
    Conversion,
    Vocabulary,
    sentencepiece_models,
    shown,
    sinusoids,
)
from export.checkpoint.foreign.torch_files import (
    completed,
    load,
    options_of,
    renamed,
    sizes,
    tensors_of,
)
from export.config.weight_names import Names, WeightLayout
from inference.errors import CheckpointError

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "swish": "silu"}
_ACTIVATIONS |= {"gelu_fast": "gelu_new", "tanh": "tanh"}
_OFFSET = 2
"""Row of the first position: behind the padding token's id."""
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
_REFUSED = (
    "no_token_positional_embeddings",
    "adaptive_input",
    "no_cross_attention",
    "cross_self_attention",
    "adaptive_softmax_cutoff",
)
"""Options of what our network does not compute, where one is set."""
_MULTILINGUAL = ("encoder_langtok", "decoder_langtok", "lang_dict", "lang_pairs", "langs")
"""Options of models of many languages, where one is set."""


def _table() -> Names:
    """Names of fairseq → those of `transformers`."""
    table: Names = {"decoder.output_projection": "lm_head", "decoder.embed_out": "lm_head.weight"}
    for side in ("encoder", "decoder"):
        layer = f"{side}.layers.*"
        names = [f"{side}.{name}" for name in ("embed_tokens", "layer_norm", "layernorm_embedding")]
        names += [f"{layer}.{name}" for name in ("fc1", "fc2", "final_layer_norm")]
        for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
            names.append(f"{layer}.{attention}_layer_norm")
            parts = [f"{layer}.{attention}.{part}_proj" for part in ("q", "k", "v", "out")]
            names += parts
            for leaf in ("weight", "bias"):  # of older versions
                packed = tuple(f"model.{part}.{leaf}" for part in parts[:3])
                table[f"{layer}.{attention}.in_proj_{leaf}"] = WeightLayout(packed)
        table |= {name: f"model.{name}" for name in names}
        table |= {
            f"{side}.embed_positions.weight": f"model.{side}.embed_positions.weight",
            f"{side}.embed_positions._float_tensor": None,
            f"{side}.version": None,
        }
    return table


def is_folder(folder: Path) -> bool:
    """Whether a folder is fairseq's: one `.pt` file and its dictionaries."""
    has_config = (folder / "config.json").is_file()
    return len(list(folder.glob("*.pt"))) == 1 and not has_config and any(folder.glob("dict.*.txt"))


def convert(folder: Path) -> Conversion:
    """A folder of fairseq's.

    Raises:
        CheckpointError: it is damaged, or holds what our network cannot compute.
    """
    path = next(folder.glob("*.pt"))
    checkpoint = load(path)
    settings = options_of(checkpoint.get("cfg"))
    options = options_of(settings.get("task")) | options_of(settings.get("model"))
    options |= options_of(checkpoint.get("args"))
    if not options:
        raise CheckpointError(f"{path} is no checkpoint of fairseq: it has no options (args, cfg)")
    config = _form(path, options)
    languages = [str(options.get(f"{side}_lang")) for side in ("source", "target")]
    source, target = (_read_tokens(folder, code) for code in languages)
    vocabulary = Vocabulary(source, target, start="</s>")
    tensors = renamed(path, tensors_of(path, checkpoint.get("model")), _table())
    tensors = completed(tensors | _positions(path, options, tensors), vocabulary)
    names = {side: f"{side}_attention_heads" for side in ("encoder", "decoder")}
    heads = {side: options.get(name) for side, name in names.items()}
    config |= sizes(path, tensors, vocabulary, heads)
    pieces = sentencepiece_models([folder])
    if pieces is None:
        raise CheckpointError(
            f"{folder} has no sentencepiece.bpe.model or sentencepiece.model: codes of subword-nmt "
            "(bpecodes), whose words Moses' scripts divide, are not read"
        )
    pair = (languages[0], languages[1])
    files = vocabulary.files(pieces, pair)
    return Conversion(config, vocabulary.generation(), tensors.items(), files)


def _form(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `config.json` that options give."""
    for name in _REFUSED:
        if options.get(name):
            raise CheckpointError(f"{path}: {name} = {shown(options[name])} is not supported")
    for name in _MULTILINGUAL:
        if options.get(name):
            raise CheckpointError(
                f"{path}: {name} = {shown(options[name])}: models of many languages are not read, "
                "because fairseq numbers the tokens of languages by files beside its data; read is "
                "what the scripts of `transformers` for M2M-100 and mBART convert"
            )
    activation = options.get("activation_fn") or "relu"
    sides = {bool(options.get(f"{side}_normalize_before")) for side in ("encoder", "decoder")}
    if activation not in _ACTIVATIONS or len(sides) > 1:
        raise CheckpointError(
            f"{path}: activation_fn = {shown(activation)}, or norms in front of one stack's layers "
            "and behind the other's, are not supported"
        )
    return {
        "activation_function": _ACTIVATIONS[activation],
        "scale_embedding": not options.get("no_scale_embedding"),
        "normalize_before": sides.pop(),
        "layer_norm_eps": 1e-5,
    }


def _positions(
    path: Path, options: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tables of both sides from the first position on, as long as the shorter one."""
    names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    counts = [options.get(f"max_{side}_positions") or 1024 for side in ("source", "target")]
    width = next(
        (each.shape[-1] for name, each in tensors.items() if name.endswith("norm.bias")), 0
    )
    made = {}
    for name, count in zip(names, counts, strict=True):
        if not isinstance(count, int) or not 0 < count <= 1 << 16 or not width:
            raise CheckpointError(f"{path}: {shown(count)} positions of {width} numbers")
        table = tensors.get(name)
        made[name] = (sinusoids(count + _OFFSET, width) if table is None else table)[_OFFSET:]
    shortest = min(map(len, made.values()))
    return {name: table[:shortest] for name, table in made.items()}


def _read_tokens(folder: Path, language: str) -> list[str]:
    """The tokens of a side, as `fairseq.data.Dictionary` counts them."""
    path = folder / f"dict.{Path(language).name}.txt"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {path.name}")
    tokens = list(_SPECIAL)
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal():
            raise CheckpointError(f"{path}: {line[:80]!r} is no token with its count")
        tokens.append(token)
    return tokens
