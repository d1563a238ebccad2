"""The committed Perceiver of pictures is small and classifies withheld combinations."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from transformers import ViTForImageClassification

from examples.history.perceiver.card import classifier
from examples.history.perceiver.initialisation import fit, initialise_from_vit
from examples.history.perceiver.train import OUTPUT, VIT, Reading, build_model
from examples.training.loop import pixel_tensor
from examples.vit.largest_thing import pictures
from examples.vit.scores import class_accuracy

COUNT = 150  # pictures


def test_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= 1_500_000


def test_withheld_combinations_are_classified() -> None:
    classify = classifier(OUTPUT)
    assert class_accuracy(classify, COUNT, seed=3) >= 0.7
    assert class_accuracy(classify, COUNT, seed=3, is_swapped=True) < 0.1


@pytest.fixture(scope="module")
def vit() -> ViTForImageClassification:
    return ViTForImageClassification.from_pretrained(VIT, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    drawn = [picture for _, picture in islice(pictures("train", 5), 16)]
    return pixel_tensor(drawn, [0.5] * 3, [0.5] * 3)


@torch.no_grad()
def test_latents_that_are_the_embeddings_of_a_vit_have_its_classes(
    vit: ViTForImageClassification, pixels: torch.Tensor
) -> None:
    torch.manual_seed(0)
    model = build_model(vit.config, layers=range(5))
    initialise_from_vit(model, vit, range(5), pixels)
    perceiver = model.perceiver
    hidden = vit.vit.embeddings(pixels)
    for layer in perceiver.encoder.self_attends:
        hidden = layer(hidden)[0]
    logits = perceiver.decoder(perceiver.decoder.decoder_query(hidden), hidden).logits
    wanted = vit(pixel_values=pixels).logits
    assert (logits.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.8
    assert torch.allclose(vit.vit.layernorm(hidden), vit.vit(pixels).last_hidden_state, atol=1e-2)


@torch.no_grad()
def test_heads_begin_at_inputs_around_their_patch(
    vit: ViTForImageClassification, pixels: torch.Tensor
) -> None:
    torch.manual_seed(0)
    model = build_model(vit.config, layers=range(2))
    initialise_from_vit(model, vit, range(2), pixels)
    perceiver = model.perceiver.eval()
    inputs, _, _ = perceiver.input_preprocessor(pixels[:1])
    cross = perceiver.encoder.cross_attention.attention
    latents = perceiver.embeddings(batch_size=1)
    _, weights = cross(latents, inputs=inputs, output_attentions=True)
    side, patch = 15, 1 + 8 * 3 + 4  # the fourth row of patches, the fifth column
    seen = [divmod(int(head.argmax()), side) for head in weights[0, :, patch]]
    middle = (6, 8)
    assert seen[0] == middle
    assert len(set(seen)) == 8
    assert all(max(abs(y - middle[0]), abs(x - middle[1])) <= 1 for y, x in seen)


def test_reading_is_learnt_from_what_a_vit_embeds(vit: ViTForImageClassification) -> None:
    torch.manual_seed(0)
    reading = Reading(build_model(vit.config, layers=range(1)), vit, seed=0, pool=40)
    loss = reading.loss()
    loss.backward()
    assert torch.isfinite(loss)
    assert loss > 0.1
    assert all(weight.grad is not None for weight in reading.parameters())
    assert vit.vit.embeddings.position_embeddings.grad is None


def test_fitted_layer_maps_the_rows() -> None:
    inputs, outputs = torch.randn(2, 5, 9), torch.randn(5, 4)
    linear = torch.nn.Linear(9, 4)
    with torch.no_grad():
        fit(linear, inputs[0], outputs)
    assert torch.allclose(linear(inputs[0]), outputs, atol=1e-4)
    assert not torch.allclose(linear(inputs[1]), outputs, atol=1e-1)
