"""The graphs of stateless image models: what reads PIXELS and returns LOGITS, EMBEDDING, ATTENTION.

Legend: B batch, C classes, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from export.architecture import Architecture, Graphs, Lowering, lower_stateless, no_section
from export.checkpoint.labels import classify_section, labels
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename
from export.layers.images.image_heads import ImageModel
from export.layers.images.vision import pixels_port, prepare_tower
from export.layers.rollout import AttentionRollout
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits, Role, Tensor
from inference.errors import CheckpointError

Head = Literal["classify", "embed"]
"""What a checkpoint's head computes, by the task that it serves."""


@dataclass(frozen=True, kw_only=True)
class ImageHead:
    """What a checkpoint has on top of an image network; configurations derive from it.

    Attributes:
        head_class: The class of `transformers` that it was saved from.
        classes: C.
        limits: None on text.
    """

    head: Head
    head_class: str
    classes: int
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class ImageConfig(ImageHead):
    """An image network and what is on top of it.

    Attributes:
        network: Has `image`, its (height, width).
    """

    network: Any


def read_head(values: Mapping[str, Any], supported: Mapping[str, Head]) -> dict[str, Any]:
    """The fields of `ImageHead`.

    Raises:
        CheckpointError: another class than those supported.
    """
    name, head = head_of(values, supported)
    return {"head": head, "head_class": name, "classes": len(labels(values))}


def head_of(values: Mapping[str, Any], supported: Mapping[str, Head]) -> tuple[str, Head]:
    """The class in `architectures` and its head.

    Args:
        values: `config.json`.
        supported: Class of `transformers` → head; the first that embeds stands for a checkpoint
            that names no class, as with `AutoModel`.

    Raises:
        CheckpointError: another class.
    """
    (name,) = values.get("architectures") or (None,)
    if name is None:
        name = next((each for each, head in supported.items() if head == "embed"), "None")
    if name not in supported:
        raise CheckpointError(
            f"config.json: architectures = {name} is not supported; supported are: "
            f"{', '.join(supported)}"
        )
    return name, supported[name]


def image_graphs(model: ImageModel, image: ImageSpec | None) -> Graphs:
    """The one part "image" of an image model, B dynamic; the model is prepared for the recipe."""
    image = prepare_tower(model, image)
    role = Role.EMBEDDING if model.head is None else Role.LOGITS
    width = model.output_width
    output = Tensor(name=role.value, dtype="float32", shape=("B", width), role=role)
    return Graphs(
        {"image": lower_stateless(model, (pixels_port(image),), output)}, parts={"image": ""}
    )


def image_architecture(
    name: str,
    read_config: Callable[[Mapping[str, Any]], ImageHead],
    build: Callable[[Any], ImageModel],
    rename: Callable[[Any], Rename],
    attention: Callable[[ImageModel, ImageSpec], Lowering] | None = None,
) -> Architecture:
    """The declaration of an image classifier or encoder: its task follows from `config.head`."""
    return Architecture(
        name=name,
        tasks={"classify": classify_section, "embed": no_section},
        read_config=read_config,
        build=build,
        rename=rename,
        graphs=image_graphs,
        tokenizer=None,
        image_size=lambda config: config.network.image,
        tasks_of=lambda config: (config.head,),
        attention=attention,
    )


def image_family(
    name: str,
    heads: Mapping[str, Head],
    read_network: Callable[[ConfigReader], Any],
    network: Callable[[Any], nn.Module],
    pool: Callable[[Any], Any],
    names: Names,
    classifier: str = "classifier",
) -> Architecture:
    """The declaration of a network whose vectors become one, and of a linear classifier of that.

    Args:
        heads: Class of `transformers` → head.
        pool: The network's configuration → what makes one vector.
        names: The network's.
        classifier: Name of the classifier's layer.
    """

    def read_config(values: Mapping[str, Any]) -> ImageConfig:
        return ImageConfig(network=read_network(ConfigReader(values)), **read_head(values, heads))

    def build(config: ImageConfig) -> ImageModel:
        pooled = pool(config.network)
        head = nn.Linear(pooled.width, config.classes) if config.head == "classify" else None
        return ImageModel(network(config.network), pooled, head, config.classes)

    def rename(config: ImageConfig) -> Rename:
        if config.head == "embed":
            return Rename(Rename(names).prefixed("", "network."))
        return Rename(Rename(names).prefixed(f"{name}.", "network.") | {classifier: "head"})

    return image_architecture(name, read_config, build, rename)


def rollout(tower: nn.Module, image: ImageSpec, leading: int = 1) -> Lowering:
    """The part "attention": a prepared tower's attention roll-out, in standard operators.

    Args:
        leading: Tokens in front of the patches.
    """
    module = AttentionRollout(tower, leading)
    shape = ("B", *module.grid)
    output = Tensor(name="attention", dtype="float32", shape=shape, role=Role.ATTENTION)
    return lower_stateless(module, (pixels_port(image),), output, is_fused=False)


def with_attention(
    architecture: Architecture, network: nn.Module, graphs: Graphs, image: ImageSpec | None
) -> Graphs:
    """The graphs of a prepared network and, as the further part "attention", its pictures.

    Raises:
        CheckpointError: the architecture has none.
    """
    if architecture.attention is None or image is None:
        raise CheckpointError(
            f"{architecture.name} has no attention pictures: export it without --attention"
        )
    lowerings = {**graphs.lowerings, "attention": architecture.attention(network, image)}
    return replace(graphs, lowerings=lowerings, parts={**graphs.parts, "attention": "-attention"})
