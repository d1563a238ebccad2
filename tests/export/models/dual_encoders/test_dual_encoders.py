"""Temperatures, scores and masks that are in the manifest and in no graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from export.parity.judge import TOLERANCE
from inference.bundle.manifest import Role
from inference.tasks.zero_shot import ZeroShotSection
from tests.export.conftest import Twins
from tests.export.oracle import difference, normalised, pixel_inputs, random_inputs
from tests.export.twins import twin_of


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (name, config)
        for name in ("clip", "metaclip_2", "chinese_clip", "altclip", "align", "groupvit")
        for config in twin_of(name).configs
    ],
)
def test_logits_are_the_scaled_cosines_of_both_towers(name: str, config: str, twins: Twins) -> None:
    twin = twins(name, config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, lengths = inputs.by_role[Role.TOKENS], inputs.by_role[Role.LENGTHS]
    pixels, image = inputs.by_role[Role.PIXELS], twin.prepared.image
    mask = (torch.arange(texts.shape[1])[None] < lengths[:, None]).long()
    section = twin.architecture.tasks["zero-shot"](twin.network, twin.checkpoint)
    with torch.no_grad():
        shown = normalised(pixels, image)
        want = twin.reference(input_ids=texts, pixel_values=shown, attention_mask=mask)
        images = graphs.lowerings["image"].module(pixels)
        labels = graphs.lowerings["text"].module(texts, lengths)
    logits = section["logit_scale"] * images @ labels.T
    assert difference(want.logits_per_image, logits) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "config"),
    [(name, config) for name in ("siglip", "siglip2") for config in twin_of(name).configs],
)
def test_scores_are_the_sigmoids_of_transformers(name: str, config: str, twins: Twins) -> None:
    twin = twins(name, config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, pixels, image = inputs.by_role[Role.TOKENS], inputs.by_role[Role.PIXELS], None
    image = twin.prepared.image
    section = twin.architecture.tasks["zero-shot"](twin.network, twin.checkpoint)
    with torch.no_grad():
        want = twin.reference(texts, **pixel_inputs(pixels, image)).logits_per_image
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


@pytest.mark.parametrize("config", twin_of("xclip").configs)
def test_logits_of_videos_and_texts_are_those_of_transformers(config: str, twins: Twins) -> None:
    twin = twins("xclip", config)
    graphs = twin.graphs()
    inputs = random_inputs(twin, graphs)
    texts, lengths = inputs.by_role[Role.TOKENS], inputs.by_role[Role.LENGTHS]
    pixels = inputs.by_role[Role.PIXELS]
    inside = torch.arange(texts.shape[1])[None] < lengths[:, None]
    section = twin.architecture.tasks["zero-shot"](twin.network, twin.checkpoint)
    with torch.no_grad():
        shown = normalised(pixels, twin.prepared.image)
        want = twin.reference(torch.where(inside, texts, 1), shown, attention_mask=inside.long())
        videos, patches = graphs.lowerings["image"].module(pixels)
        vectors = graphs.lowerings["text"].module(texts, lengths)
        labels = graphs.lowerings["labels"].module(patches, vectors.expand(len(pixels), -1, -1))
    logits = section["logit_scale"] * torch.einsum("be,bke->bk", videos, labels)
    assert difference(want["logits_per_video"], logits) < TOLERANCE
    assert difference(labels[0], labels[1]) > 100 * TOLERANCE  # the video decides


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
