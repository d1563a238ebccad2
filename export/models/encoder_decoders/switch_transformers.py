"""Switch Transformers: T5, in some of whose blocks each token passes one of several MLPs.

Paper: Fedus et al. 2021, "Switch Transformers: Scaling to Trillion Parameter Models with Simple and
Efficient Sparsity", §2 (arXiv 2101.03961).
Checkpoints: `google/switch-base-8`, `-16` (`model_type: switch_transformers`).

Legend: B batch, T positions, E experts, D width.

A router gives each token an expert and multiplies its output by the router's probability. Of a
source, an expert takes the first tokens up to its capacity; others pass no MLP.
Differences from `transformers`: as in `t5.py`. All experts compute all tokens, whose outputs are
then chosen from, so models of more experts are refused. Targets know no capacity: a step has one
token, and `transformers` counts within a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import no_section
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.models.encoder_decoders import t5
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

MOST_EXPERTS = 16
"""The time of a sparse block grows with them."""

# ---------------------------------------------------------------------------------------- config

_DEFAULTS = {"num_heads": 12, "num_layers": 12, "num_decoder_layers": 12}
_OF_T5 = ("feed_forward_proj", "is_gated_act", "scale_decoder_outputs")
"""Fields that T5 reads, and this family does not."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """T5's configuration, and that of its sparse blocks."""

    t5: t5.Config
    experts: int = key("num_experts", 8)
    capacity: int = key("expert_capacity", 64)
    has_router_bias: bool = key("router_bias", False)
    sparse: Mapping[str, tuple[bool, ...]]
    """Side → whether each of its blocks is sparse."""

    supported = {"router_dtype": "float32"}

    @property
    def limits(self) -> Limits:
        """T5's."""
        return self.t5.limits


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: too many experts.
    """
    own = {name: value for name, value in values.items() if name not in _OF_T5}
    reader, inner = ConfigReader(values), t5.read_config({**_DEFAULTS, **own, "model_type": "t5"})
    layers = {"encoder": inner.encoder_layers, "decoder": inner.decoder_layers}
    sparse = {side: _read_sparse(reader, side, count) for side, count in layers.items()}
    config = reader.read(Config, t5=inner, sparse=sparse)
    if config.experts > MOST_EXPERTS:
        raise CheckpointError(
            f"config.json: num_experts = {config.experts} is not supported, only up to "
            f"{MOST_EXPERTS} are: all experts compute all tokens"
        )
    return config


def _read_sparse(reader: ConfigReader, side: str, layers: int) -> tuple[bool, ...]:
    """Which blocks are sparse: the second one of each `step`."""
    count = reader.index(f"num_sparse_{side}_layers", 3)
    step = reader.index(f"{side}_sparse_step", layers // count if count else layers)
    return tuple(step > 0 and (step == 1 or layer % step == 1) for layer in range(layers))


# --------------------------------------------------------------------------------------- network


class SparseMLP(nn.Module):
    """An MLP for each token, which a router chooses.

    The router stays float32 in int8 models, as rounded scores would choose other experts (§2.4 of
    the paper): it is the first factor, of a product for each token, whose bits no other changes.

    Args:
        capacity: Most tokens of a sequence that an expert takes; None: any number.
    """

    def __init__(self, config: Config, capacity: int | None) -> None:
        super().__init__()
        count = config.experts
        self.router = nn.Parameter(torch.zeros(count, config.t5.width))
        self.router_bias = nn.Parameter(torch.zeros(count)) if config.has_router_bias else None
        self.experts = nn.ModuleList(t5.make_mlp(config.t5) for _ in range(count))
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        scores = (self.router @ x[..., None]).squeeze(-1)  # (B, T, E)
        if self.router_bias is not None:
            scores = scores + self.router_bias
        shares = scores.softmax(dim=-1)
        chosen = shares.argmax(dim=-1, keepdim=True) == torch.arange(len(self.experts))
        if self.capacity is not None:
            chosen = chosen & (chosen.long().cumsum(dim=-2) <= self.capacity)
        factors = shares.masked_fill(~chosen, 0.0).split(1, dim=-1)
        outputs = [factor * mlp(x) for factor, mlp in zip(factors, self.experts, strict=True)]
        return torch.stack(outputs).sum(dim=0)


class SwitchTransformers(t5.T5):
    """Both stacks over one table of tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.t5)
        for side, capacity in (("encoder", config.capacity), ("decoder", None)):
            blocks = self.get_submodule(f"{side}.blocks").children()
            for block, is_sparse in zip(blocks, config.sparse[side], strict=True):
                if is_sparse:
                    block.mlp = SparseMLP(config, capacity)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """T5's names → ours, and those of routers and experts."""
    names = t5.rename(config.t5)
    table = {name.replace("DenseReluDense", "mlp"): each for name, each in names.table.items()}
    for side, place in (("encoder", 1), ("decoder", 2)):
        for block, is_sparse in enumerate(config.sparse[side]):
            theirs, ours = f"{side}.block.{block}.layer.{place}.mlp", f"{side}.blocks.{block}.mlp"
            if is_sparse:
                del table[f"{theirs}.wi"], table[f"{theirs}.wo"]
                table |= _sparse_names(config, theirs, ours)
    return Rename(table, names.optional, names.tied)


def _sparse_names(config: Config, theirs: str, ours: str) -> Names:
    names: Names = {f"{theirs}.router.classifier.weight": f"{ours}.router"}
    if config.has_router_bias:
        names[f"{theirs}.router.classifier.bias"] = f"{ours}.router_bias"
    for expert in range(config.experts):
        names[f"{theirs}.experts.expert_{expert}.wi"] = f"{ours}.experts.{expert}.up"
        names[f"{theirs}.experts.expert_{expert}.wo"] = f"{ours}.experts.{expert}.down"
    return names


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    t5.ARCHITECTURE,
    name="switch_transformers",
    tasks={"generate": no_section},
    read_config=read_config,
    build=SwitchTransformers,
    rename=rename,
    tasks_of=None,
)
