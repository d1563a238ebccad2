"""Formats of weights that are not read, each refused by its name, and code that is not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from torch import Tensor

from inference.errors import CheckpointError

PICKLES = "a format that can run code when it is read"
_SAVE = "load it with `transformers` where you trust it and call `save_pretrained`"
_SAVE_OLD = "load it with `transformers` 4 ({}) and call `save_pretrained`"
_ORIGINAL = "export the checkpoint that it was made from"
_NO_WEIGHTS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "scaler.*")
ADAPTERS = (
    *("adapter_config.json", "adapter_model.*", "pytorch_adapter.bin"),
    *("adapters.safetensors", "pytorch_lora_weights.*"),
)
"""Files of PEFT, of the library `adapters`, of MLX and of `diffusers`."""
_MERGE = "merge it into its base (PEFT: `merge_and_unload`, then `save_pretrained`) and export that"


@dataclass(frozen=True)
class _Format:
    """Weights in files of certain names.

    Attributes:
        name: Follows "holds its weights in" or, with `is_whole`, "is".
        advice: What to do.
    """

    name: str
    patterns: tuple[str, ...]
    advice: str
    is_whole: bool = False

    def found(self, names: Iterable[str]) -> str | None:
        """The first of the files that has this format."""
        return next((name for name in sorted(names) if _matches(name, self.patterns)), None)


_FORMATS = (
    _Format("an adapter without its base", ADAPTERS, _MERGE, is_whole=True),
    _Format(
        "a pipeline of `diffusers`", ("model_index.json",), "its models are not supported", True
    ),
    _Format(
        "Marian's 8-bit format (Bergamot, Firefox)",
        ("*.intgemm*", "*.alphas*", "lex.*.bin"),
        "export the .npz that it was made from",
    ),
    _Format("OpenVINO's format", ("*openvino*.xml", "openvino/*"), _ORIGINAL),
    _Format(
        "the format of its authors' own code",
        ("consolidated*", "original/consolidated*"),
        "export its conversion for `transformers`",
    ),
    _Format(
        PICKLES, ("*.bin", "*.pt", "*.pth", "*.ckpt"), f"convert it to safetensors first: {_SAVE}"
    ),
    _Format("TensorFlow's format", ("*.h5", "*.keras"), _SAVE_OLD.format("`from_tf=True`")),
    _Format(
        "TensorFlow's format",
        ("*.ckpt.*", "*.ckpt-*", "*.index", "saved_model.pb", "*.tflite"),
        _SAVE_OLD.format("its scripts convert such files"),
    ),
    _Format("Flax's format", ("*.msgpack",), _SAVE_OLD.format("`from_flax=True`")),
    _Format("GGUF (llama.cpp)", ("*.gguf", "*.ggml"), _ORIGINAL),
    _Format("ONNX", ("*.onnx", "onnx/*"), _ORIGINAL),
    _Format("Core ML's format", ("*.mlmodel", "*.mlpackage"), _ORIGINAL),
    _Format("numpy's format", ("*.npz", "*.npy"), _ORIGINAL),
)
"""In the order in which they are looked for: some folders hold several."""
_PACKED = (
    *("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv"),
    *("weight_zero_point", "input_scale", "absmax", "quant_map", "SCB", "codes", "codebooks"),
)
"""Last part of a tensor's name: of GPTQ, AWQ, compressed-tensors, FP8, bitsandbytes, AQLM, MLX."""


def _matches(name: str, patterns: Iterable[str]) -> bool:
    leaf = name.rsplit("/", 1)[-1]
    return any(fnmatch(name, each) for each in patterns) and not any(
        fnmatch(leaf, each) for each in _NO_WEIGHTS
    )


def describe_other_weights(names: Iterable[str]) -> str | None:
    """What files are that are not read, and what to do; None where there are none.

    Args:
        names: Of a folder's files, those of folders in it with their paths.
    """
    names = list(names)
    for each in _FORMATS:
        if (found := each.found(names)) is not None:
            verb = "is" if each.is_whole else "holds its weights in"
            return f"{verb} {each.name} ({found}), which is not read: {each.advice}"
    return None


def refuse_adapters(place: object, names: Iterable[str]) -> None:
    """Refuses an adapter beside its base: `transformers` would apply it.

    Raises:
        CheckpointError: names its file.
    """
    found = sorted(name for name in names if _matches(name, ADAPTERS))
    if found:
        raise CheckpointError(
            f"{place} holds an adapter (LoRA) beside the weights of its base ({', '.join(found)}): "
            f"{_MERGE}, or remove its files to export the base alone"
        )


def quantisation_notes(
    place: object, config: Mapping[str, Any], headers: Iterable[tuple[str, Tensor]]
) -> list[str]:
    """A warning where the configuration calls weights quantised that are not.

    Args:
        headers: Name, shape and type of each tensor.

    Raises:
        CheckpointError: they are.
    """
    sections = [config, *(each for each in config.values() if isinstance(each, Mapping))]
    names = ("quantization_config", "quantization", "compression_config")
    declared = next((each[name] for each in sections for name in names if each.get(name)), None)
    method = declared.get("quant_method") if isinstance(declared, Mapping) else None
    shown = f" ({method})" if isinstance(method, str) else ""
    for name, tensor in headers:
        last = name.rsplit(".", 1)[-1]
        is_packed = declared and last == "weight" and not tensor.is_floating_point()
        if is_packed or last in _PACKED or "bitsandbytes__" in last:
            raise CheckpointError(
                f"{place} has quantised weights{shown}, which are not read ({name}): export the "
                "checkpoint in float that they were made from; --precision quantises it"
            )
    if declared is None:
        return []
    return [f"config.json calls the weights quantised{shown}; they are not, and are used as is"]


def code_of(settings: Mapping[str, Any]) -> str | None:
    """The code of its own that a folder's file names (`auto_map`)."""
    named = settings.get("auto_map")
    values = named.values() if isinstance(named, Mapping) else [named]
    flat = [one for each in values for one in (each if isinstance(each, list) else [each])]
    return next((one for one in flat if isinstance(one, str)), None)
