"""Image models of timm: `config.json` with `architecture`, and its names of tensors.

`timm_wrapper` of `transformers` writes the same files. What an architecture's name stands for is
that of timm 1.0: names that no pattern here matches, and arguments that no shape of a tensor shows,
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.checkpoint.foreign import torch_files
from export.checkpoint.foreign.conversion import CONFIG, TIMM_RECIPE, Conversion, read_object
from export.checkpoint.weight_files import read_headers, read_tensors
from export.config.config_reader import ConfigReader
from export.config.weight_names import BERT_ATTENTION, VIT_ATTENTION, Names, Rename, WeightLayout
from inference.errors import CheckpointError

WRAPPER = "timm_wrapper"
_WEIGHTS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_WRAPPED = "timm_model."
"""What `transformers` puts in front of names in memory; older versions wrote it too."""
_OF_TRAINING = (
    *("drop_rate", "drop_path_rate", "drop_block_rate", "attn_drop_rate", "pos_drop_rate"),
    *("proj_drop_rate", "patch_drop_rate", "weight_init", "fix_init", "head_init_scale"),
)
"""Arguments that change nothing at inference."""


def is_folder(folder: Path) -> bool:
    """Whether a folder is timm's; its copies of CLIP have a configuration of open_clip too."""
    config = read_object(folder / CONFIG)
    is_named = isinstance(config.get("architecture"), str)
    is_own = config.get("model_type") in (None, WRAPPER)
    return is_named and is_own and not (folder / "open_clip_config.json").is_file()


def convert(folder: Path) -> Conversion:
    """A folder of timm's.

    Raises:
        CheckpointError: it is damaged, or its network is not computed.
    """
    return _Model(folder).convert()


class _Model:
    """One folder: its configuration, and shapes and values of its tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = ConfigReader(read_object(folder / CONFIG))
        self.name = self.reader.text("architecture")
        found = (each for each in _FAMILIES if re.fullmatch(each.pattern, self.name))
        family = next(found, None)
        if family is None:
            raise CheckpointError(
                f"{folder}: timm's architecture {self.name} is not served; served are: "
                f"{'; '.join(each.shown for each in _FAMILIES)}"
            )
        self.family = family
        legacy = "pretrained_cfg" not in self.reader.given
        self.recipe = self.reader if legacy else self.reader.section("pretrained_cfg")
        given = {"model_args": {}, **self.reader.given}
        self.arguments = ConfigReader(given).section("model_args")

    def convert(self) -> Conversion:
        """The folder as `transformers` would store the model."""
        self._check_arguments()
        model_type, fields, names = self.family.describe(self)
        classes = self._classes()
        prefix, head = ("", "Model") if classes is None else (f"{model_type}.", _CLASSIFIER)
        own: dict[str, object] = {
            "model_type": model_type,
            "architectures": [f"{_CLASSES[model_type]}{head}"],
            "image_size": list(self.image),
            TIMM_RECIPE: dict(self.recipe.values),
        }
        notes = []
        if classes is not None:
            labels = self.reader.find("label_names", self.recipe.find("label_names"))
            if labels is None:
                notes.append("config.json has no label_names: classes are LABEL_0, LABEL_1, …")
                labels = [f"LABEL_{number}" for number in range(classes)]
            if not isinstance(labels, list) or len(labels) != classes:
                raise CheckpointError(
                    f"{self.folder}: label_names must be a list of the names of {classes} classes"
                )
            own["id2label"] = {str(number): str(name) for number, name in enumerate(labels)}
        return Conversion(own | fields, {}, self._renamed(names, prefix), notes=notes)

    def _check_arguments(self) -> None:
        """Refuses arguments that no shape of a tensor shows.

        Raises:
            CheckpointError: names them.
        """
        self.reader.refuse_unless(do_pooling=True)
        fixed = {"in_chans": 3, "global_pool": self.family.pool}
        for reader in (self.reader, self.arguments):
            reader.refuse_unless(**fixed)
        shown = (*self.family.arguments, *fixed, "img_size", "num_classes", *_OF_TRAINING)
        ConfigReader(self.arguments.given, self.arguments.place).refuse_others(*shown)

    def _classes(self) -> int | None:
        """The number of classes; None without a classifier.

        Raises:
            CheckpointError: the weights have another number.
        """
        name = f"{self.head}.weight"
        have = self.shape(name, 2)[0] if name in self.shapes else 0
        given = self.reader.find("num_classes", self.recipe.find("num_classes", have))
        is_bare = not have and self.reader.find("architectures") == ["TimmWrapperModel"]
        if given != have and not is_bare:
            raise CheckpointError(
                f"{self.folder}: num_classes = {given}, but the weights of its classifier "
                f"({self.head}) are of {have} classes"
            )
        return have or None

    @property
    def head(self) -> str:
        """The classifier's name."""
        return "head" if "head.weight" in self.shapes else self.family.head

    @cached_property
    def image(self) -> tuple[int, int]:
        """Height and width."""
        size = self.recipe.sizes("input_size", [3, 224, 224], count=3)
        if size[0] != 3:
            raise CheckpointError(f"{self.recipe.place}: input_size = {size} is of no RGB image")
        return size[1], size[2]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of each tensor."""
        headers: Iterable[tuple[str, Tensor]]
        if (self.folder / _WEIGHTS).is_file():
            headers = read_headers(self.folder / _WEIGHTS, None)
        else:
            headers = self._pickled.items()
        return {name.removeprefix(_WRAPPED): tuple(each.shape) for name, each in headers}

    @cached_property
    def _pickled(self) -> dict[str, Tensor]:
        path = self.folder / _PICKLE
        if not path.is_file():
            raise CheckpointError(
                f"{self.folder} has no weights: expected {_WEIGHTS} or {_PICKLE}, as timm writes "
                "them"
            )
        return torch_files.tensors_of(path, torch_files.load(path))

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """The shape of a tensor that the architecture has.

        Raises:
            CheckpointError: it is missing, or of another rank.
        """
        shape = self.shapes.get(name, ())
        if len(shape) != rank:
            raise CheckpointError(
                f"{self.folder}: {name} of timm's architecture {self.name} is missing or misshaped"
            )
        return shape

    def count(self, pattern: str) -> int:
        """How many modules there are: `*` of the pattern counts from 0."""
        number = 0
        while pattern.replace("*", str(number)) in self.shapes:
            number += 1
        return number

    def depths(self, pattern: str, first: int = 0) -> list[int]:
        """Blocks of each stage: `#` of the pattern is its number."""
        depths: list[int] = []
        while depth := self.count(pattern.replace("#", str(first + len(depths)))):
            depths.append(depth)
        return depths

    def _renamed(self, names: Names, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Tensors under the names of `transformers`."""
        renamed = Rename(names).prefixed("", prefix)
        table = Rename(renamed | {self.head: self.family.classifier})
        layouts: dict[str, WeightLayout] = {}
        others: list[str] = []
        for name in self.shapes:
            try:
                layouts[name] = table.find(name)
            except KeyError:
                others.append(name)
        if others:
            raise CheckpointError(
                f"{self.folder} holds tensors that timm's architecture {self.name} has not, or "
                f"that are not computed: {', '.join(sorted(others)[:8])}"
            )
        return self._values(layouts)

    def _values(self, layouts: Mapping[str, WeightLayout]) -> Iterator[tuple[str, Tensor]]:
        path = self.folder / _WEIGHTS
        values = read_tensors(path, None) if path.is_file() else iter(self._pickled.items())
        for name, tensor in values:
            name = name.removeprefix(_WRAPPED)
            yield from layouts[name].pieces(self._adapted(name, tensor))

    def _adapted(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor as the network of `transformers` has it."""
        if ".grn." in name:
            return tensor[None, None, None]
        if name == "pos_embed" and self.positions == self.patches:
            return torch.cat([torch.zeros_like(tensor[:, :1]), tensor], dim=1)
        if name == "head.weight" and _LAYER_SCALE in self.shapes:
            return torch.cat([tensor, torch.zeros_like(tensor)], dim=1)  # of the patches' mean
        return tensor

    @property
    def patches(self) -> int:
        """Patches of an image."""
        height, width = self.shape("patch_embed.proj.weight", 4)[2:]
        return (self.image[0] // height) * (self.image[1] // width)

    @property
    def positions(self) -> int:
        """Positions of a ViT, the class token's too where it has one."""
        return self.shape("pos_embed", 3)[1]


# ---------------------------------------------------------------------------------------- families


_Described = tuple[str, dict[str, Any], Names]


@dataclass(frozen=True)
class _Family:
    """Architectures with one table of names.

    Attributes:
        pattern: Of their names.
        shown: The names, for messages.
        describe: `model_type`, fields of `config.json` and names of tensors (timm's → those of
            `transformers`, without a classifier), from the shapes of tensors.
        arguments: `model_args` that shapes show, or that `describe` reads.
        head: The classifier's name; `head` in older files of Swin.
        classifier: The same in `transformers`.
        pool: The one supported value of `global_pool`.
    """

    pattern: str
    shown: str
    describe: Callable[[_Model], _Described]
    arguments: tuple[str, ...]
    head: str = "head.fc"
    classifier: str = "classifier"
    pool: str = "avg"


def _packed(theirs: str, ours: str, names: str) -> Names:
    """Query, key and value in one tensor, and the output's layer."""
    *inner, out = (f"{ours}.{name}" for name in names.split())
    return {f"{theirs}.qkv": WeightLayout(tuple(inner)), f"{theirs}.proj": out}


def _describe_resnet(model: _Model) -> _Described:
    depths = model.depths("layer#.*.conv1.weight", first=1)
    kind = "bottleneck" if "layer1.0.conv3.weight" in model.shapes else "basic"
    last = "conv3" if kind == "bottleneck" else "conv2"
    pairs = [("conv1", "bn1", "embedder.embedder")]
    for stage in range(len(depths)):
        theirs, ours = f"layer{stage + 1}", f"encoder.stages.{stage}.layers"
        pairs += [
            (f"{theirs}.*.conv{n}", f"{theirs}.*.bn{n}", f"{ours}.*.layer.{n - 1}")
            for n in (1, 2, 3)
        ]
        halved = f"{theirs}.0.downsample"
        pairs.append((f"{halved}.0", f"{halved}.1", f"{ours}.0.shortcut"))
    names: Names = {}
    for convolution, norm, ours in pairs:
        names[convolution] = f"{ours}.convolution"
        names[norm] = f"{ours}.normalization"
        names[f"{norm}.num_batches_tracked"] = None
    widths = [
        model.shape(f"layer{stage + 1}.0.{last}.weight", 4)[0] for stage in range(len(depths))
    ]
    width = model.shape("conv1.weight", 4)[0]
    fields = {"embedding_size": width, "hidden_sizes": widths, "depths": depths, "layer_type": kind}
    return "resnet", fields, names


_LAYER_SCALE = "blocks.0.ls1.gamma"
_HEADS = {"tiny": 3, "small": 6, "medium": 8, "base": 12}
"""Heads by the size in a ViT's name; larger ones have 16."""


def _heads(model: _Model) -> int:
    """Heads of a ViT: no shape shows them."""
    heads = _HEADS.get(model.name.split("_")[1], 16)
    if "_plus_" in model.name:
        heads = 14
    if re.fullmatch("vit_giant.*dinov2", model.name):
        heads = 24
    return model.arguments.integer("num_heads", heads)


def _describe_vit(model: _Model) -> _Described:
    width, _, *patch = model.shape("patch_embed.proj.weight", 4)
    inner = model.shape("blocks.0.mlp.fc2.weight", 2)[1]
    fields: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": model.count("blocks.*.norm1.weight"),
        "intermediate_size": inner,
        "patch_size": patch,
        "layer_norm_eps": 1e-6,
    }
    if model.name.startswith("beit"):
        fields["num_attention_heads"] = model.shape(f"blocks.0.attn.{_TABLE}", 2)[1]
        fields |= {"use_relative_position_bias": True, "use_mean_pooling": True}
        return "beit", fields, _BEIT_NAMES
    fields["num_attention_heads"] = _heads(model)
    fields["qkv_bias"] = "blocks.0.attn.qkv.bias" in model.shapes
    if model.positions not in (model.patches, model.patches + 1):
        raise CheckpointError(
            f"{model.folder}: pos_embed has {model.positions} positions, but input_size of "
            f"{model.image} has {model.patches} patches of {patch}: resize the model with timm and "
            "save it again"
        )
    if _LAYER_SCALE not in model.shapes:
        return "vit", fields, _VIT_NAMES
    is_gated = model.shape("blocks.0.mlp.fc1.weight", 2)[0] == 2 * inner
    # Both are rounded when they are read.
    fields["mlp_ratio"] = 1.5 * inner / width if is_gated else (inner + 0.5) / width
    fields["use_swiglu_ffn"] = is_gated
    names = _GATED_NAMES if is_gated else _SCALED_NAMES
    if "reg_token" not in model.shapes:
        return "dinov2", fields, names
    registers = model.shape("reg_token", 3)[1]
    return "dinov2_with_registers", fields | {"num_register_tokens": registers}, names


_BLOCK, _LAYER = "blocks.*", "encoder.layer.*"


def _block_names(names: str) -> Names:
    """The names of a ViT: patches, tokens and blocks.

    Args:
        names: Of both norms and both layers of the MLP in `transformers`.
    """
    first, second, up, down = names.split()
    return {
        "cls_token": "embeddings.cls_token",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        f"{_BLOCK}.norm1": f"{_LAYER}.{first}",
        **_packed(f"{_BLOCK}.attn", f"{_LAYER}.attention", VIT_ATTENTION),
        f"{_BLOCK}.norm2": f"{_LAYER}.{second}",
        f"{_BLOCK}.mlp.fc1": f"{_LAYER}.{up}",
        f"{_BLOCK}.mlp.fc2": f"{_LAYER}.{down}",
    }


_OLD_BLOCK = "layernorm_before layernorm_after intermediate.dense output.dense"
_ENDS: Names = {"pos_embed": "embeddings.position_embeddings", "norm": "layernorm"}
_SCALES: Names = {
    **_ENDS,
    "reg_token": "embeddings.register_tokens",
    f"{_BLOCK}.ls1.gamma": f"{_LAYER}.layer_scale1.lambda1",
    f"{_BLOCK}.ls2.gamma": f"{_LAYER}.layer_scale2.lambda1",
}
_VIT_NAMES = _block_names(_OLD_BLOCK) | _ENDS
_SCALED_NAMES = _block_names("norm1 norm2 mlp.fc1 mlp.fc2") | _SCALES
_GATED_NAMES = _block_names("norm1 norm2 mlp.weights_in mlp.weights_out") | _SCALES


_TABLE = "relative_position_bias_table"
_INNER = f"{_LAYER}.attention.attention"
_BEIT_NAMES: Names = _block_names(_OLD_BLOCK) | {
    f"{_BLOCK}.attn.q_bias": f"{_INNER}.query.bias",
    f"{_BLOCK}.attn.v_bias": f"{_INNER}.value.bias",
    f"{_BLOCK}.attn.{_TABLE}": f"{_INNER}.relative_position_bias.{_TABLE}",
    f"{_BLOCK}.attn.relative_position_index": None,
    f"{_BLOCK}.gamma_1": f"{_LAYER}.lambda_1",
    f"{_BLOCK}.gamma_2": f"{_LAYER}.lambda_2",
    "fc_norm": "pooler.layernorm",
}


def _describe_convnext(model: _Model) -> _Described:
    depths = model.depths("stages.#.blocks.*.conv_dw.weight")
    is_second = "stages.0.blocks.0.mlp.grn.weight" in model.shapes
    patch = model.shape("stem.0.weight", 4)[2:]
    fields = {
        "hidden_sizes": [
            model.shape(f"stages.{stage}.blocks.0.conv_dw.weight", 4)[0]
            for stage in range(len(depths))
        ],
        "depths": depths,
        "num_stages": len(depths),
        "patch_size": list(patch),
        "layer_norm_eps": 1e-6,
        "layer_scale_init_value": float("stages.0.blocks.0.gamma" in model.shapes),
    }
    return f"convnext{'v2' * is_second}", fields, _CONVNEXT_NAMES


_CELL, _CELLS = "stages.*.blocks.*", "encoder.stages.*.layers.*"
_CONVNEXT_NAMES: Names = {
    "stem.0": "embeddings.patch_embeddings",
    "stem.1": "embeddings.layernorm",
    "stages.*.downsample.*": "encoder.stages.*.downsampling_layer.*",
    f"{_CELL}.conv_dw": f"{_CELLS}.dwconv",
    f"{_CELL}.norm": f"{_CELLS}.layernorm",
    f"{_CELL}.mlp.fc1.weight": WeightLayout((f"{_CELLS}.pwconv1.weight",), is_flattened=True),
    f"{_CELL}.mlp.fc1": f"{_CELLS}.pwconv1",
    f"{_CELL}.mlp.grn": f"{_CELLS}.grn",
    f"{_CELL}.mlp.fc2.weight": WeightLayout((f"{_CELLS}.pwconv2.weight",), is_flattened=True),
    f"{_CELL}.mlp.fc2": f"{_CELLS}.pwconv2",
    f"{_CELL}.gamma": f"{_CELLS}.layer_scale_parameter",
    "head.norm": "layernorm",
}
"""The MLP's layers are linear, or convolutions of 1 x 1."""


def _describe_swin(model: _Model) -> _Described:
    depths = model.depths("layers.#.blocks.*.norm1.weight")
    tables = [
        model.shape(f"layers.{stage}.blocks.0.attn.{_TABLE}", 2) for stage in range(len(depths))
    ]
    width, _, *patch = model.shape("patch_embed.proj.weight", 4)
    window = (isqrt(tables[0][0]) + 1) // 2
    multiple = (patch[0] << len(depths) - 1) * window
    if len({*model.image, *patch}) != 2 or model.image[0] % multiple:
        raise CheckpointError(
            f"{model.folder}: input_size of {model.image} is not supported, only a square of "
            f"multiples of {multiple}: timm pads windows in another way than `transformers`"
        )
    fields = {
        "embed_dim": width,
        "depths": depths,
        "num_heads": [heads for _, heads in tables],
        "window_size": window,
        "patch_size": patch,
        "mlp_ratio": model.shape("layers.0.blocks.0.mlp.fc1.weight", 2)[0] / width,
        "qkv_bias": "layers.0.blocks.0.attn.qkv.bias" in model.shapes,
    }
    later = int("layers.0.downsample.norm.weight" not in model.shapes)  # older: behind the stage
    merging = {
        f"layers.{stage + later}.downsample.{part}": f"encoder.layers.{stage}.downsample.{part}"
        for stage in range(len(depths) - 1)
        for part in ("norm", "reduction")
    }
    return "swin", fields, _SWIN_NAMES | merging


_WINDOWS, _OWN = "layers.*.blocks.*", "encoder.layers.*.blocks.*"
_SWIN_NAMES: Names = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "patch_embed.norm": "embeddings.norm",
    f"{_WINDOWS}.norm1": f"{_OWN}.layernorm_before",
    **_packed(f"{_WINDOWS}.attn", f"{_OWN}.attention", BERT_ATTENTION),
    f"{_WINDOWS}.attn.{_TABLE}": f"{_OWN}.attention.self.{_TABLE}",
    f"{_WINDOWS}.attn.relative_position_index": None,
    f"{_WINDOWS}.attn_mask": None,
    f"{_WINDOWS}.norm2": f"{_OWN}.layernorm_after",
    f"{_WINDOWS}.mlp.fc1": f"{_OWN}.intermediate.dense",
    f"{_WINDOWS}.mlp.fc2": f"{_OWN}.output.dense",
    "norm": "layernorm",
}

_CLASSIFIER = "ForImageClassification"
_CLASSES = {
    "resnet": "ResNet",
    "vit": "ViT",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "convnext": "ConvNext",
    "convnextv2": "ConvNextV2",
    "swin": "Swin",
    "beit": "Beit",
}
"""`model_type` → what names of its classes begin with."""
_VIT_ARGUMENTS = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "init_values")
_FAMILIES = (
    _Family(
        r"resnet(18|26|34|50|101|152)",
        "resnet18, 26, 34, 50, 101 and 152",
        _describe_resnet,
        ("layers", "channels"),
        head="fc",
        classifier="classifier.1",
    ),
    _Family(
        r"(vit|deit|deit3)_(tiny|small|medium|base|large|huge|giant|gigantic)_patch\d+"
        r"(_(plus|36x1))?_\d+(_miil)?|vit_(small|base|large|giant)_patch14(_reg4)?_dinov2",
        "vit_SIZE_patchN_N, vit_SIZE_patch14_dinov2 and _reg4_dinov2, deit_SIZE_patch16_N, "
        "deit3_SIZE_patchN_N",
        _describe_vit,
        (*_VIT_ARGUMENTS, "qkv_bias", "reg_tokens", "no_embed_class"),
        head="head",
        pool="token",
    ),
    _Family(
        r"convnext_(atto|femto|pico|nano|tiny|small|base|large|xlarge)"
        r"|convnextv2_(atto|femto|pico|nano|tiny|small|base|large|huge)",
        "convnext_SIZE (but xxlarge) and convnextv2_SIZE",
        _describe_convnext,
        ("depths", "dims", "conv_mlp", "use_grn", "ls_init_value"),
    ),
    _Family(
        r"swin_(tiny|small|base|large)_patch4_window\d+_\d+",
        "swin_SIZE_patch4_windowN_N",
        _describe_swin,
        ("patch_size", "window_size", "embed_dim", "depths", "num_heads", "mlp_ratio", "qkv_bias"),
    ),
    _Family(
        r"beit(v2)?_(base|large)_patch16_\d+",
        "beit_SIZE_patch16_N and beitv2_SIZE_patch16_N",
        _describe_vit,
        _VIT_ARGUMENTS,
        head="head",
    ),
)
