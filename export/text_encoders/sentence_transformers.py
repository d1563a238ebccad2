"""Pooling and limits of an embedding model, as `sentence_transformers` folders hold them.

`modules.json` lists the modules: the encoder in the folder itself, then pooling and what follows,
each with a folder of its own. Other folders are pooled by mean and normalised, or as `--pooling`
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import PurePosixPath

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.load_network import load_network
from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.layers.activation import Activation
from export.text_encoders.heads import HeadKind
from export.text_encoders.network import TextModel
from export.text_encoders.pooling import Pooling, PoolingMode, Projection, UnitLength
from export.tokenizer.tokenizer_json import SETTINGS
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

ENCODER_SETTINGS = "sentence_bert_config.json"
MODES = {
    "cls": PoolingMode.CLS,
    "max": PoolingMode.MAX,
    "mean": PoolingMode.MEAN,
    "mean_sqrt_len_tokens": PoolingMode.MEAN_SQRT_LEN,
    "weightedmean": PoolingMode.WEIGHTED_MEAN,
    "lasttoken": PoolingMode.LAST,
}
"""Names of modes → ours."""
FLAGS = {
    "pooling_mode_cls_token": PoolingMode.CLS,
    "pooling_mode_max_tokens": PoolingMode.MAX,
    "pooling_mode_mean_tokens": PoolingMode.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": PoolingMode.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": PoolingMode.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": PoolingMode.LAST,
}
"""Flags of older folders, in the order in which several modes are concatenated."""


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "Identity": _identity,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}
"""Classes of `torch.nn` → functions."""


def set_pooling(network: nn.Module, checkpoint: Checkpoint, wanted: str | None) -> str | None:
    """Gives an embedding network its pooling; one line about it for the console.

    Args:
        wanted: A pooling mode that replaces the default.

    Returns:
        None for networks that do not embed texts.

    Raises:
        CheckpointError: there is nothing to choose: not such a network, or its folder has a
            pooling; or a module of the folder is not supported.
    """
    embeds = isinstance(network, TextModel) and network.head.kind is HeadKind.BARE
    if wanted is not None and (not embeds or is_sentence_folder(checkpoint)):
        reason = "modules.json of this folder" if embeds else "the network"
        raise CheckpointError(f"pooling is fixed by {reason}: leave out --pooling")
    if not isinstance(network, TextModel) or not embeds:
        return None
    if is_sentence_folder(checkpoint):
        network.pooling = read_pooling(checkpoint, network.encoder.width)
        origin = "from modules.json"
    else:
        network.pooling = Pooling((PoolingMode(wanted or PoolingMode.MEAN),))
        origin = "chosen" if wanted else "the default; --pooling changes it"
    return f"pooling: {describe(network.pooling)} ({origin})"


def describe(pooling: Pooling) -> str:
    """Modes and layers, in a few words."""
    modes = " + ".join(pooling.modes)
    projects = any(isinstance(layer, Projection) for layer in pooling.layers)
    dense = ", a linear layer" if projects else ""
    length = "vectors of unit length" if pooling.is_normalized else "vectors of any length"
    return f"{modes}{dense}, {length}"


def is_sentence_folder(checkpoint: Checkpoint) -> bool:
    """Whether the folder pools."""
    return any(_kind(module) == "Pooling" for module in checkpoint.modules())


def read_pooling(checkpoint: Checkpoint, width: int) -> Pooling:
    """The modules behind the encoder.

    Args:
        width: Of the encoder's vectors.

    Raises:
        CheckpointError: names a module or an option that is not supported.
    """
    modules = checkpoint.modules()
    kinds = [_kind(module) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or modules[0]["path"]:
        raise CheckpointError(
            f"{checkpoint.folder}: modules.json must begin with a Transformer in the folder itself "
            f"and a Pooling, not with {', '.join(kinds[:2])}"
        )
    settings = _settings(checkpoint, modules[1])
    settings.refuse_unless(include_prompt=True)
    modes = _modes(settings)
    width *= len(modes)
    layers: list[nn.Module] = []
    for module, kind in zip(modules[2:], kinds[2:], strict=True):
        if kind == "Normalize":
            layers.append(UnitLength())
        elif kind == "Dense":
            projection = _projection(checkpoint, module, width)
            layers.append(projection)
            width = projection.linear.out_features
        elif kind != "Dropout":  # which does nothing outside training
            raise CheckpointError(
                f"{checkpoint.folder}: the module {module['type']} is not supported, "
                "only Transformer, Pooling, Dense, Normalize and Dropout"
            )
    return Pooling(modes, layers)


def limits(checkpoint: Checkpoint, network: Limits) -> Limits:
    """The network's limits, lowered to those of a `sentence_transformers` folder.

    Raises:
        CheckpointError: the folder changes texts before they are tokenised.
    """
    if not is_sentence_folder(checkpoint):
        return network
    reader = ConfigReader(checkpoint.json(ENCODER_SETTINGS), ENCODER_SETTINGS)
    reader.refuse_unless(do_lower_case=False)
    length = reader.values.get("max_seq_length")
    length = checkpoint.json(SETTINGS).get("model_max_length") if length is None else length
    known = [each for each in (length, network.max_input_tokens) if each is not None]
    return network.model_copy(update={"max_input_tokens": int(min(known)) if known else None})


def _kind(module: Mapping[str, str]) -> str:
    return module["type"].rpartition(".")[2]


def _settings(checkpoint: Checkpoint, module: Mapping[str, str]) -> ConfigReader:
    file = f"{module['path']}/config.json"
    return ConfigReader(checkpoint.json(file), file)


def _modes(settings: ConfigReader) -> tuple[PoolingMode, ...]:
    """The modes, from a name, a list of names, or flags.

    Raises:
        CheckpointError: an unknown name.
    """
    named = settings.values.get("pooling_mode")
    if named is None:
        flagged = tuple(mode for flag, mode in FLAGS.items() if settings.flag(flag, False))
        return flagged or (PoolingMode.MEAN,)
    names = [named] if isinstance(named, str) else list(named)
    if not set(names) <= set(MODES):
        raise CheckpointError(
            f"{settings.place}: pooling_mode = {named!r} is not supported, only {', '.join(MODES)}"
        )
    return tuple(MODES[name] for name in names)


def _projection(checkpoint: Checkpoint, module: Mapping[str, str], width: int) -> Projection:
    """A `Dense` module, its weights loaded.

    Raises:
        CheckpointError: an option that is not supported, or weights that do not fit.
    """
    settings = _settings(checkpoint, module)
    settings.refuse_unless(
        in_features=width,
        use_residual=False,
        module_input_name="sentence_embedding",
        module_output_name="sentence_embedding",
    )
    named = settings.text("activation_function", "torch.nn.modules.activation.Tanh")
    name = named.rpartition(".")[2]
    if not named.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise CheckpointError(
            f"{settings.place}: activation_function = {named!r} is not supported, "
            f"only those of torch.nn: {', '.join(ACTIVATIONS)}"
        )
    out, bias = settings.integer("out_features"), settings.flag("bias", True)
    folder = checkpoint.folder / PurePosixPath(module["path"])
    own = Checkpoint(folder, folder.name, settings.values)
    build = partial(Projection, width, out, ACTIVATIONS[name], bias)
    return load_network(build, own, Rename({"linear": "linear"}))
