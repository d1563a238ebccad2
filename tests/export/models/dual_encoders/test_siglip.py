"""SigLIP's scores, which are in the manifest and in no graph, and its padded texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Role
from inference.tasks.zero_shot import ZeroShotSection
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, random_inputs
from tests.export.twins import twin_of


@pytest.mark.parametrize("config", twin_of("siglip").configs)
def test_scores_are_the_sigmoids_of_transformers(config: str, twins: Twins) -> None:
    twin = twins("siglip", config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, pixels, image = inputs.by_role[Role.TOKENS], inputs.by_role[Role.PIXELS], None
    image = twin.prepared.image
    section = twin.architecture.tasks["zero-shot"](twin.network, twin.checkpoint)
    with torch.no_grad():
        want = twin.reference(texts, normalised(pixels, image)).logits_per_image
        images = graphs.lowerings["image"].module(pixels)
        labels = graphs.lowerings["text"].module(texts)
    cosines = images @ labels.T
    assert difference(want, section["logit_scale"] * cosines + section["logit_bias"]) < TOLERANCE
    scores = ZeroShotSection(**section).scores(cosines.double().numpy())
    np.testing.assert_allclose(scores, want.sigmoid().numpy(), atol=1e-6)


def test_padding_is_part_of_a_text(twins: Twins) -> None:
    twin = twins("siglip", "odd")
    text = twin.graphs().lowerings["text"]
    tokens = random_inputs(twin, twin.graphs()).by_role[Role.TOKENS]
    other = torch.where(tokens == 0, 9, tokens)  # another padding token
    with torch.no_grad():
        assert difference(text.module(tokens), text.module(other)) > 0.01


def test_text_graph_takes_one_length(twins: Twins) -> None:
    port = twins("siglip", "odd").graphs().lowerings["text"].graph.input(Role.TOKENS)
    assert port.shape == ("B", 12)
