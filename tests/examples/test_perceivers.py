"""The committed Perceivers."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from transformers import PerceiverTokenizer, ViTForImageClassification

from examples.bert.scores import MASK
from examples.history.perceiver.card import classifier
from examples.history.perceiver.train import (
    OUTPUT,
    VIT,
    Reading,
    build_model,
    fit,
    initialise_from_vit,
)
from examples.history.perceiver_text.card import filler
from examples.history.perceiver_text.scores import (
    MOST_BYTES,
    WORD,
    masked_bytes_right,
    masked_texts,
    masked_words_right,
    most_frequent_words_right,
)
from examples.history.perceiver_text.train import OUTPUT as PERCEIVER_TEXT_OUTPUT
from examples.history.perceiver_text.train import POSITIONS, MaskedBytes, rows
from examples.history.perceiver_text.train import build_model as build_model_perceiver_text
from examples.training.loop import pixel_tensor
from examples.vit.scores import class_accuracy, pictures

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


PERCEIVER_TEXT_COUNT, SEED = 100, 3


def test_perceiver_text_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in PERCEIVER_TEXT_OUTPUT.iterdir()) <= 1_100_000


def test_masked_words_are_filled_from_the_sentence() -> None:
    fill = filler(PERCEIVER_TEXT_OUTPUT)
    right = masked_words_right(fill, "held_out", PERCEIVER_TEXT_COUNT, SEED)
    assert right > 0.3
    assert right > 2 * most_frequent_words_right("held_out", PERCEIVER_TEXT_COUNT, SEED)
    assert right > 2 * masked_words_right(
        fill, "held_out", PERCEIVER_TEXT_COUNT, SEED, is_shuffled=True
    )


def restored(texts: list[str]) -> list[str]:
    """What the masks hide."""
    asked, truths = masked_texts("held_out", 30, SEED)
    assert texts == asked
    return truths


def test_right_bytes_score_one() -> None:
    assert masked_words_right(restored, "held_out", 30, SEED) == 1
    assert masked_bytes_right(restored, "held_out", 30, SEED) == 1


def test_one_wrong_byte_makes_a_word_wrong() -> None:
    def fill(texts: list[str]) -> list[str]:
        return ["#" + word[1:] for word in restored(texts)]

    assert masked_words_right(fill, "held_out", 30, SEED) == 0
    assert 0.5 < masked_bytes_right(fill, "held_out", 30, SEED) < 1


def test_control_has_the_masked_word_among_words_in_another_order() -> None:
    plain, truths = masked_texts("held_out", 30, SEED)
    shuffled, same = masked_texts("held_out", 30, SEED, is_shuffled=True)
    assert plain != shuffled
    for text, truth in zip(plain, truths, strict=True):
        assert text.count(MASK) == len(truth)
    assert sorted(plain[0].split()) == sorted(shuffled[0].split())
    assert truths[0] == same[0]


def test_rows_have_one_or_several_sentences_that_fit() -> None:
    drawn = [text for text, _ in zip(rows(1), range(400), strict=False)]
    lengths = [len(text.encode()) for text in drawn]
    assert max(lengths) <= MOST_BYTES
    assert 50 < sum(lengths) / len(lengths) < 90
    assert rows(1).__next__() == drawn[0] != next(rows(2))


def test_masked_bytes_are_decoded_as_the_whole_model_decodes_them() -> None:
    torch.manual_seed(0)
    tokenizer = PerceiverTokenizer(model_max_length=POSITIONS)
    model = build_model_perceiver_text(tokenizer).eval()
    encoded = tokenizer(["a dog", "the cat"], padding=True, return_tensors="pt")
    tokens, mask = encoded["input_ids"], encoded["attention_mask"]
    task = MaskedBytes(model, tokenizer, seed=0)
    at = torch.tensor([[1, 3], [2, 0]])
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask).logits
        found = task.logits(tokens, mask, at)
    for row in (0, 1):
        assert torch.allclose(found[row], whole[row, at[row]], atol=1e-4)


def test_whole_words_are_masked_behind_the_first_token() -> None:
    tokenizer = PerceiverTokenizer(model_max_length=POSITIONS)
    task = MaskedBytes(build_model_perceiver_text(tokenizer), tokenizer, seed=0)
    text = "Sofía is small"
    spoken = {word[0] for word in WORD.finditer(text)}
    ids = tokenizer(text)["input_ids"]
    for _ in range(20):
        places = task._places(text)
        assert tokenizer.decode([ids[at] for at in places]) in spoken
    assert torch.isfinite(task.loss())


@torch.no_grad()
def test_latents_begin_at_bytes_beside_one_another() -> None:
    torch.manual_seed(0)
    tokenizer = PerceiverTokenizer(model_max_length=POSITIONS)
    perceiver = build_model_perceiver_text(tokenizer).eval().perceiver
    inputs, _, _ = perceiver.input_preprocessor(torch.tensor([tokenizer("a" * 100)["input_ids"]]))
    cross = perceiver.encoder.cross_attention.attention
    _, weights = cross(perceiver.embeddings(batch_size=1), inputs=inputs, output_attentions=True)
    for latent in (3, 10, 25):
        place = 2 + 3 * latent
        seen = weights[0, :, latent].argmax(-1).tolist()
        assert seen == [*range(place - 3, place + 5)]
