"""The temperature of CLIP, which is in the manifest and in no graph."""

from __future__ import annotations

import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Role
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs
from tests.export.twins import twin_of


@pytest.mark.parametrize("config", twin_of("clip").configs)
def test_logits_are_the_scaled_cosines_of_both_towers(config: str, twins: Twins) -> None:
    twin = twins("clip", config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, lengths = inputs.by_role[Role.TOKENS], inputs.by_role[Role.LENGTHS]
    pixels, image = inputs.by_role[Role.PIXELS], twin.prepared.image
    mask = (torch.arange(texts.shape[1])[None] < lengths[:, None]).long()
    section = twin.architecture.tasks["zero-shot"](twin.network, twin.checkpoint)
    with torch.no_grad():
        want = twin.reference(texts, normalised(pixels, image), attention_mask=mask)
        images = graphs.lowerings["image"].module(pixels)
        labels = graphs.lowerings["text"].module(texts, lengths)
    logits = section["logit_scale"] * images @ labels.T
    assert difference(want.logits_per_image, logits) < TOLERANCE
