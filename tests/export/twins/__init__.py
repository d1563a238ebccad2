"""Checkpoints of the registry's twins: tiny, every parameter random, saved to a folder.

Of an architecture that `transformers` lacks, the checkpoint is our own network's, and its reference
the paper written out in numpy, which reads the same file.

A twin with default initialisation hides most mistakes (`docs/architecture.md`, fidelity): biases
are zero, norms are one. Here weights are ±0.3, norms 1 ± 0.5, biases ±0.5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

from export.architecture import Architecture, Graphs
from export.registry import architecture, families, place_of
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Growth, Role
from tests.export.twin import EXPORTED, Twin

_BATCH_NORMS = nn.BatchNorm2d | nn.BatchNorm1d
_NORMS = nn.LayerNorm | _BATCH_NORMS  # the latters' mean and variance too


@cache
def twin_of(model_type: str) -> Twin:
    """The twin of an architecture, in the module of this folder that has its module's name.

    It has the declaration's name there; that of `ARCHITECTURE` is `TWIN`.
    """
    module, name = place_of(model_type)
    twins = import_module(f"{__name__}.{module.rpartition('.')[2]}")
    twin: Twin = getattr(twins, "TWIN" if name == "ARCHITECTURE" else name)
    return twin


def make_twin(
    name: str,
    config: str,
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Any:
    """The reference of a twin, with random weights; its checkpoint is saved to `folder`.

    Args:
        changes: Fields that replace those of the twin's configuration.
        seed: Of the weights of a model of `transformers`.
    """
    declared = architecture(name)
    twin = twin_of(name)
    module, _, attribute = twin.reference_of(config).partition(":")
    reference = getattr(import_module(module), attribute)
    values = {**twin.configs[config], **(changes or {})}
    if not issubclass(reference, nn.Module):
        return _own_twin(name, declared, reference, config, folder)
    fields = {field: value for field, value in values.items() if field != "model_type"}
    model = reference(reference.config_class(**fields)).eval()
    for name_tied in twin.untied.get(config, ()):
        owner, _, leaf = name_tied.rpartition(".")
        apart = nn.Parameter(model.get_parameter(name_tied).detach().clone())
        setattr(model.get_submodule(owner), leaf, apart)
    randomise(model, seed)
    if any(isinstance(module, _BATCH_NORMS) for module in model.modules()):
        size = declared.size_of(declared.read_config(values))
        assert size is not None
        gather_statistics(model, twin.images.get(config) or size)
    model.save_pretrained(folder)
    if (folder / "config.json").is_file():  # open_clip's folders have none
        saved = json.loads((folder / "config.json").read_text())
        _write_config(folder, saved | {"model_type": values.get("model_type", name)})
    return model


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draws every parameter and saved buffer anew."""
    generator = torch.Generator().manual_seed(seed)
    norms = {name for name, module in model.named_modules() if is_norm(module)}
    saved = model.state_dict()  # rotary frequencies and masks are computed, not saved
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in saved}
    tensors = dict(model.named_parameters()) | buffers
    with torch.no_grad():
        for name, tensor in tensors.items():
            is_computed = "embed_positions" in name and not tensor.requires_grad
            if not tensor.is_floating_point() or is_computed:
                continue
            module, _, leaf = name.rpartition(".")
            noise = torch.rand(tensor.shape, generator=generator) * 2 - 1
            if "bias" in leaf:
                tensor.copy_(0.5 * noise)
            elif module in norms:
                tensor.copy_(1 + 0.5 * noise)
            else:
                tensor.copy_(0.3 * noise)
            if leaf == "temperature":  # which is positive
                tensor.abs_()


def gather_statistics(model: nn.Module, image: tuple[int, int]) -> None:
    """Sets means and variances of batch normalisation to those of random images.

    With random ones the values of all patches become nearly equal in a deep network, and mistakes
    in attention have no effect.
    """
    for module in model.modules():
        if isinstance(module, _BATCH_NORMS):
            module.momentum = 1.0
    model.train()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        tower = getattr(model, "vision_model", model)  # ALIGN reads texts first
        tower(2 * torch.randn(8, 3, *image, generator=generator))
    model.eval()


def is_norm(module: nn.Module) -> bool:
    """Whether a module's parameters scale normalised values, `transformers`' own norms included."""
    return isinstance(module, _NORMS) or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))


def image_recipe(declared: Architecture, name: str, config: Any) -> ImageSpec | None:
    """A recipe of a configuration's image size, with numbers that differ everywhere.

    Args:
        config: What `read_config` made of it.
    """
    if declared.image_recipe is not None:
        return declared.image_recipe(config)
    size = declared.size_of(config)
    if size is None:
        return None
    twin = twin_of(declared.name)
    return ImageSpec(
        resize=twin.resize,
        size=twin.images.get(name) or size,
        resample=2,
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3),
        rescale=1 / 255 if twin.resize == "exact" else 1.0,
    )


def every_config() -> list[tuple[str, str]]:
    """(architecture, configuration) of every twin."""
    return [(name, config) for name in families() for config in twin_of(name).configs]


@cache
def interface(name: str, config: str = EXPORTED) -> Graphs:
    """The graphs of a twin's network, for their inputs, outputs and states; weights as built."""
    parsed, network = build(name, config)
    return architecture(name).graphs(network, image_recipe(architecture(name), config, parsed))


def build(name: str, config: str = EXPORTED) -> tuple[Any, nn.Module]:
    """A twin's configuration and its network, with the weights of its construction."""
    declared = architecture(name)
    parsed = declared.read_config(twin_of(name).configs[config])
    return parsed, declared.build(parsed)


def generators(
    *, is_transformers: bool | None = None, has_source: bool | None = None, graph: str = "step"
) -> list[str]:
    """The architectures that generate tokens, for tests that run on every one of them.

    Args:
        is_transformers: Only those whose reference is (or is not) a class of `transformers`.
        has_source: Only those that have (or lack) the graph `admit`.
        graph: Only those that have this graph.
    """
    return [
        name
        for name in families()
        if {"step", graph} <= set(interface(name).lowerings)
        and is_transformers in (None, twin_of(name).is_transformers)
        and has_source in (None, "admit" in interface(name).lowerings)
    ]


def lowerable() -> list[str]:
    """The architectures that are exported in lower precisions, too."""
    return [
        name
        for name in families()
        if not any(each.graph.output(Role.CHOSEN) for each in interface(name).lowerings.values())
    ]


def has_alignment(name: str) -> bool:
    """Whether a generator has the graph `align`, or emits its attention as it steps."""
    lowerings = interface(name).lowerings
    return "align" in lowerings or lowerings["step"].graph.output(Role.EMIT) is not None


def growth(name: str) -> set[Growth]:
    """The kinds of state that an architecture has."""
    return {state.growth for state in interface(name).states}


def _own_twin(name: str, declared: Architecture, reference: Any, config: str, folder: Path) -> Any:
    values = {"model_type": name, **twin_of(name).configs[config]}
    network = declared.build(declared.read_config(values))
    randomise(network)
    save_file(network.state_dict(), folder / "model.safetensors")
    _write_config(folder, values)
    return reference(load_file(folder / "model.safetensors"), values)


def _write_config(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
