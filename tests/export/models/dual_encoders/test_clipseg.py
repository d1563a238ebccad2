"""Masks of CLIPSeg from labels, through both graphs, and what its network lacks."""

from __future__ import annotations

import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Role
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs
from tests.export.twins import twin_of


@pytest.mark.parametrize("config", twin_of("clipseg").configs)
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
