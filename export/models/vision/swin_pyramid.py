"""Swin Transformer as the image tower of detectors: grids of several stages, of images of any size.

Paper: Liu et al. 2021, "Swin Transformer", §3 (arXiv 2103.14030).
As `SwinBackbone` of `transformers`: in smaller grids, too, windows keep size and shift.

Legend: B batch, h x w grid of patches, D width of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry
from export.layers.attention.windows import pad_grid
from export.layers.images.vision import PixelNorm
from export.models.vision import swin
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

_TINY = {"depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}


@dataclass(frozen=True)
class Config:
    """The network, and the stages that are read."""

    swin: swin.NetworkConfig
    stages: tuple[int, ...]
    """Counted from 0."""

    @property
    def widths(self) -> tuple[int, ...]:
        """D of each stage that is read."""
        return tuple(self.swin.stage_width(stage) for stage in self.stages)

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        """Height and width in pixels of what each vector of these stages stands for."""
        return tuple(
            (self.swin.patch[0] << each, self.swin.patch[1] << each) for each in self.stages
        )


def read_config(values: Mapping[str, Any], place: str) -> Config:
    """The configuration; defaults are those of Swin-T.

    Args:
        place: Of the values, for messages.

    Raises:
        CheckpointError: another network, learned positions, or stages that there are not.
    """
    reader = ConfigReader({**_TINY, **values}, place)
    reader.choice("model_type", ("swin",), "swin")
    reader.refuse_unless(use_absolute_embeddings=False)
    network = swin.read_network_config(reader)
    names = ["stem", *(f"stage{number}" for number in range(1, len(network.depths) + 1))]
    listed = values.get("out_features")
    if listed is None:
        last = len(names) - 1
        numbers = values.get("out_indices")
        numbers = range(last - 2, last + 1) if numbers is None else numbers
        listed = [names[number] for number in numbers if number in range(-last, last + 1)]
    stages = tuple(number for number, name in enumerate(names[1:]) if name in listed)
    if len(stages) != len(listed) or not stages:
        raise CheckpointError(f"{place}: out_features = {listed!r} are not stages of {names[1:]}")
    return Config(replace(network, has_final_norm=False, has_any_size=True), stages)


class Pyramid(swin.Swin):
    """Pixels → the grids of some stages."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.swin)
        self.read = config.stages
        self.norms = nn.ModuleDict(
            {_name(stage): nn.LayerNorm(config.swin.stage_width(stage)) for stage in self.read}
        )

    def prepare(self, image: ImageSpec) -> None:
        """Takes uint8 pixels from now on, not a normalised image."""
        self.pixel_norm = PixelNorm(image)
        for stage in self.stages:
            assert isinstance(stage, swin.Stage)
            stage.prepare(image.shape[:2])

    def grids(self, pixels: Tensor) -> list[Tensor]:
        """(B, height, width, 3) uint8 → (B, h, w, D) of each stage that is read."""
        image = self.pixel_norm(pixels).permute(0, 2, 3, 1)
        image = pad_grid(image, self.config.patch).permute(0, 3, 1, 2)
        x = self.patch_norm(self.patches.projection(image).permute(0, 2, 3, 1))
        found = []
        for number, stage in enumerate(self.stages):
            assert isinstance(stage, swin.Stage)
            for block in stage.blocks:
                x = block(x)
            if number in self.read:
                found.append(self.norms[_name(number)](x))
            x = stage.merging(x)
        return found


def _name(stage: int) -> str:
    """Of a stage in `transformers`, which counts from 1."""
    return f"stage{stage + 1}"


def rename(theirs: str, ours: str, config: Config) -> dict[str, Entry]:
    """The names below a prefix on either side; newer files have `swin.` behind theirs."""
    table: dict[str, Entry] = {}
    for prefix in (theirs, f"{theirs}swin."):
        table |= swin.rename_network(prefix, ours) | {f"{prefix}layernorm": None}
    for stage in config.stages:
        name = _name(stage)
        table[f"{theirs}hidden_states_norms.{name}"] = f"{ours}norms.{name}"
    return table
