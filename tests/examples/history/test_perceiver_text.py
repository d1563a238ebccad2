"""The committed Perceiver of texts is small and fills masked bytes; how they are scored."""

from __future__ import annotations

import torch
from transformers import PerceiverTokenizer

from examples.bert.scores import MASK
from examples.history.perceiver_text.card import filler
from examples.history.perceiver_text.scores import (
    MOST_BYTES,
    WORD,
    masked_bytes_right,
    masked_texts,
    masked_words_right,
    most_frequent_words_right,
)
from examples.history.perceiver_text.train import OUTPUT, POSITIONS, MaskedBytes, build_model, rows

COUNT, SEED = 100, 3


def test_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= 1_100_000


def test_masked_words_are_filled_from_the_sentence() -> None:
    fill = filler(OUTPUT)
    right = masked_words_right(fill, "held_out", COUNT, SEED)
    assert right > 0.3
    assert right > 2 * most_frequent_words_right("held_out", COUNT, SEED)
    assert right > 2 * masked_words_right(fill, "held_out", COUNT, SEED, is_shuffled=True)


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
    model = build_model(tokenizer).eval()
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
    task = MaskedBytes(build_model(tokenizer), tokenizer, seed=0)
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
    perceiver = build_model(tokenizer).eval().perceiver
    inputs, _, _ = perceiver.input_preprocessor(torch.tensor([tokenizer("a" * 100)["input_ids"]]))
    cross = perceiver.encoder.cross_attention.attention
    _, weights = cross(perceiver.embeddings(batch_size=1), inputs=inputs, output_attentions=True)
    for latent in (3, 10, 25):
        place = 2 + 3 * latent
        seen = weights[0, :, latent].argmax(-1).tolist()
        assert seen == [*range(place - 3, place + 5)]
