"""The scores of OWL-ViT and OWLv2, which are in no graph, and what its network lacks."""

from __future__ import annotations

import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Role
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs
from tests.export.twins import twin_of


@pytest.mark.parametrize("name", ["owlvit", "owlv2"])
@pytest.mark.parametrize("config", twin_of("owlvit").configs)
def test_logits_of_regions_and_texts_are_those_of_transformers(
    config: str, name: str, twins: Twins
) -> None:
    twin = twins(name, config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, lengths = inputs.by_role[Role.TOKENS], inputs.by_role[Role.LENGTHS]
    pixels, image = inputs.by_role[Role.PIXELS][:1], twin.prepared.image
    inside = torch.arange(texts.shape[1])[None] < lengths[:, None]
    with torch.no_grad():
        want = twin.reference(
            torch.where(inside, texts, 0), normalised(pixels, image), attention_mask=inside.long()
        )
        boxes, regions, biases, *objectness = graphs.lowerings["image"].module(pixels)
        labels = graphs.lowerings["text"].module(texts, lengths)
    assert difference(want.logits, regions @ labels.T + biases[..., None]) < TOLERANCE
    assert difference(want.pred_boxes, boxes) < TOLERANCE
    assert len(objectness) == (name == "owlv2")
    for found in objectness:
        assert difference(want.objectness_logits, found) < TOLERANCE
