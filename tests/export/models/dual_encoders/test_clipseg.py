"""Masks of CLIPSeg from labels, through both graphs, and what its network lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from export.parity.judge import TOLERANCE
from export.registry import architecture
from inference.bundle.manifest import Role
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs


@pytest.mark.parametrize("config", architecture("clipseg").twin.configs)
def test_masks_of_texts_are_those_of_transformers(config: str, twins: Twins) -> None:
    twin = twins("clipseg", config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, lengths = inputs.by_role[Role.TOKENS], inputs.by_role[Role.LENGTHS]
    pixels, image = inputs.by_role[Role.PIXELS][:1], twin.prepared.image
    inside = torch.arange(texts.shape[1])[None] < lengths[:, None]
    with torch.no_grad():
        want = twin.reference(
            torch.where(inside, texts, 1),
            normalised(pixels, image).expand(len(texts), -1, -1, -1),
            attention_mask=inside.long(),
        ).logits
        conditions = graphs.lowerings["text"].module(texts, lengths)
        masks = graphs.lowerings["image"].module(pixels, conditions[None])
    assert difference(want, masks[0]) < TOLERANCE
    assert difference(want[:1], want[1:2]) > 100 * TOLERANCE  # the texts decide


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["CLIPSegModel"]}, "CLIPSegModel is not supported"),
        ({"extract_layers": [1, 0]}, "extract_layers must be blocks of the tower, 0 to 1"),
        ({"extract_layers": [2]}, "extract_layers must be blocks"),
        ({"extract_layers": []}, "extract_layers must be blocks"),
        ({"conditional_layer": 2}, "conditional_layer must be 0 to 1"),
        ({"vision_config": {"image_size": [32, 64]}}, "1 x 2 patches are not square"),
    ],
)
def test_what_the_network_lacks_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    declared = architecture("clipseg")
    values = declared.twin.configs["plain"]
    vision = values["vision_config"] | change.pop("vision_config", {})
    with pytest.raises(CheckpointError, match=message):
        declared.read_config({**values, "vision_config": vision | {"patch_size": 32}, **change})
