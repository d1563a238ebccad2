"""The graphs of stateless image models: what reads PIXELS and returns LOGITS, EMBEDDING, ATTENTION.

Legend: B batch, C classes, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from export.architecture import Architecture, Graphs, Lowering
from export.layers.image_heads import ImageModel
from export.layers.rollout import AttentionRollout, Tower
from serving.bundle import Graph, ImageSpec, Role, Tensor
from serving.errors import CheckpointError

FILE = "model.onnx"
Head = Literal["classify", "embed"]
"""What a checkpoint's head computes, by the task that it serves."""


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
        name = next(each for each, head in supported.items() if head == "embed")
    if name not in supported:
        raise CheckpointError(
            f"config.json: architectures = {name} is not supported; supported are: "
            f"{', '.join(supported)}"
        )
    return name, supported[name]


def image_graphs(model: ImageModel, image: ImageSpec | None) -> Graphs:
    """The one part "image" of an image model, B dynamic; the model is prepared for the recipe."""
    assert image is not None
    model.prepare(image)
    role = Role.EMBEDDING if model.head is None else Role.LOGITS
    width = model.output_width
    output = Tensor(name=role.value, dtype="float32", shape=("B", width), role=role)
    graph = Graph(file=FILE, inputs=(_pixels(image),), outputs=(output,))
    return Graphs({"image": Lowering(model, graph)}, parts={"image": ""})


def rollout(tower: Tower, image: ImageSpec, leading: int = 1) -> Lowering:
    """The part "attention": a prepared tower's attention roll-out, in standard operators.

    Args:
        leading: Tokens in front of the patches.
    """
    module = AttentionRollout(tower, leading)
    shape = ("B", *module.grid)
    output = Tensor(name="attention", dtype="float32", shape=shape, role=Role.ATTENTION)
    graph = Graph(file=FILE, inputs=(_pixels(image),), outputs=(output,))
    return Lowering(module, graph, is_fused=False)


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


def _pixels(image: ImageSpec) -> Tensor:
    return Tensor(name="pixels", dtype="uint8", shape=("B", *image.shape), role=Role.PIXELS)
