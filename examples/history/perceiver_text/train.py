"""Trains `history-perceiver-text`: a Perceiver IO that fills masked bytes of English sentences.

Built, trained and saved with `transformers`, on the sentences of `example-bert`'s test of masked
words. No vocabulary is learnt: a text is its bytes, read into a fixed number of latents, and only
the masked positions are decoded.

    python -m examples.history.perceiver_text.train

The heads of the layer that reads begin with their attention on one byte each, beside one another;
those of the layer that decodes with theirs on the latents around the masked byte. Where latents
begin at random, most of a short training goes by until they read different bytes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PerceiverConfig, PerceiverForMaskedLM, PerceiverTokenizer

from examples import checkpoint
from examples.history.perceiver.train import fit
from examples.history.perceiver_text.card import write_card
from examples.history.perceiver_text.scores import MOST_BYTES, WORD
from examples.texts.grammar import sentences
from examples.training.checkpoint_folder import run_line, runs_of, save_half, start, training_flags
from examples.training.loop import Recipe, train

SPACING = 3
"""Bytes between the places of neighbouring latents."""
_WAVES = (2.6, 4.3, 7.0, 12.0, 26.0, 64.0)  # lengths in bytes, of which places are told apart
_COARSE = 2  # of the waves, the first that is longer than the spacing of latents
_LONGEST_WAVE = 256.0  # in a latent
_DECODED = (0, -3, 3, 0, -6, 6, -9, 9)  # bytes from a masked one to where the heads decode
_READING, _DECODING = 2.0, 1.5  # scores of a place beside those of places far from it


@torch.no_grad()
def initialise_places(model: PerceiverForMaskedLM) -> None:
    """Sets positions, latents, queries and keys of the two layers that cross arrays, in place."""
    perceiver: Any = model.perceiver
    inputs, cross = perceiver.input_preprocessor, perceiver.encoder.cross_attention.attention.self
    count, width = perceiver.embeddings.latents.shape
    positions = len(inputs.position_embeddings.weight)
    waves = torch.tensor(_WAVES)
    circles = _circles(torch.arange(positions), waves)
    features = circles.shape[1]  # the rest of an input is its byte's
    inputs.position_embeddings.weight[:, :features] = circles
    inputs.position_embeddings.weight[:, features:].normal_(0, 0.05)
    inputs.embeddings.weight.normal_(0, 0.5)
    inputs.embeddings.weight[:, :features] = 0

    places = 2 + SPACING * torch.arange(count)
    lengths = torch.logspace(math.log10(_WAVES[0]), math.log10(_LONGEST_WAVE), width // 3)
    latents = torch.randn(count, width) * 0.3
    latents[:, : 2 * len(lengths)] = _circles(places, lengths)
    perceiver.embeddings.latents.copy_(latents)
    normed = nn.functional.layer_norm(latents, latents.shape[1:])

    sharp = math.sqrt(_READING * math.sqrt(features))
    shifts = range(-cross.num_heads // 2 + 1, cross.num_heads // 2 + 1)
    fit(cross.query, normed, sharp * torch.cat([_circles(places + at, waves) for at in shifts], 1))
    cross.key.weight.zero_()
    for head in cross.key.weight.split(features):
        head[:, :features].copy_(sharp * torch.eye(features))
    cross.value.weight.normal_(0, 0.15)
    _initialise_decoding(perceiver.decoder, circles, normed, places)


def _initialise_decoding(decoder: Any, circles: Tensor, latents: Tensor, places: Tensor) -> None:
    """Queries at the positions of bytes, keys at the places of latents."""
    queries = decoder.output_position_encodings.position_embeddings
    queries.normal_(0, 0.3)
    queries[:, : circles.shape[1]] = circles
    attention = decoder.decoding_cross_attention.attention.self
    waves = torch.tensor(_WAVES[_COARSE:])
    sharp = math.sqrt(_DECODING * math.sqrt(attention.qk_channels_per_head))
    keys = nn.Linear(latents.shape[1], 2 * len(waves))
    fit(keys, latents, sharp * _circles(places, waves))
    for part in (attention.query, attention.key):
        part.weight.normal_(0, 0.02)
        part.bias.zero_()
    for head, shift in enumerate(_DECODED):
        rows = slice(head * attention.qk_channels_per_head, None)
        attention.key.weight[rows][: 2 * len(waves)] = keys.weight
        attention.key.bias[rows][: 2 * len(waves)] = keys.bias
        attention.query.weight[rows][: 2 * len(waves), : circles.shape[1]] = sharp * _shifted(shift)


def _circles(places: Tensor, waves: Tensor) -> Tensor:
    """(N,) → (N, 2 W): sines and cosines of places, in bytes."""
    angles = 2 * math.pi * places[:, None] / waves
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _shifted(distance: int) -> Tensor:
    """(2 C, 2 W): maps the circles of a place to the coarse ones of another place."""
    angles = 2 * math.pi * distance / torch.tensor(_WAVES[_COARSE:])
    rows, count = torch.arange(len(angles)), len(_WAVES)
    turned = torch.zeros(2 * len(angles), 2 * count)
    sine, cosine = rows + _COARSE, rows + _COARSE + count
    turned[rows, sine], turned[rows, cosine] = angles.cos(), angles.sin()
    turned[rows + len(rows), cosine], turned[rows + len(rows), sine] = angles.cos(), -angles.sin()
    return turned


MODULE = "examples.history.perceiver_text.train"
OUTPUT = checkpoint("history-perceiver-text")
POSITIONS = MOST_BYTES + 2
_LATENTS = 32
_ROW_BYTES = SPACING * _LATENTS
_BATCH, _RATE = 64, 2.5e-3
_SINGLE_SHARE = 0.25  # of the rows
_MASKED_SHARE = 0.25  # of the words of a row, at least one
_IGNORED = -100  # labels that cross entropy skips


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = parse_arguments()
    folder = start(arguments)
    tokenizer = PerceiverTokenizer(model_max_length=POSITIONS)
    tokenizer.save_pretrained(folder)
    if arguments.resume:
        model = PerceiverForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    else:
        model = build_model(tokenizer)
    task = MaskedBytes(model, tokenizer, arguments.seed)
    recipe = Recipe(arguments.steps, arguments.seed, _BATCH, _RATE)
    minutes = train(model, lambda _step: task.loss(), recipe)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "rows of text", recipe.pictures, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=arguments.resume)))


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m examples.history.perceiver_text.train`."""
    parser = training_flags(__doc__, OUTPUT, 4500)
    parser.add_argument("--resume", action="store_true", help="continue from the saved weights")
    return parser.parse_args()


def build_model(tokenizer: PerceiverTokenizer) -> PerceiverForMaskedLM:
    """An untrained network, its latents at places three bytes from each other."""
    config = PerceiverConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS,
        d_model=64,
        num_latents=_LATENTS,
        d_latents=96,
        num_self_attends_per_block=4,
        num_self_attention_heads=4,
        num_cross_attention_heads=8,
        qk_channels=96,
        v_channels=96,
        self_attention_widening_factor=2,
        cross_attention_widening_factor=4,
        attention_probs_dropout_prob=0.0,  # no dropout: every row is new
        initializer_range=0.1,  # 0.02 is for a width of 1280
    )
    model = PerceiverForMaskedLM(config)
    initialise_places(model)
    return model


class MaskedBytes:
    """Rows of sentences of which some words are masked byte by byte."""

    def __init__(
        self, model: PerceiverForMaskedLM, tokenizer: PerceiverTokenizer, seed: int
    ) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._random = Random(f"masked bytes {seed}")
        self._rows = rows(seed)

    def loss(self) -> torch.Tensor:
        """Mean cross entropy of the masked bytes of the next rows."""
        texts = [next(self._rows) for _ in range(_BATCH)]
        encoded = self._tokenizer(texts, padding=True, return_tensors="pt")
        tokens, mask = encoded["input_ids"], encoded["attention_mask"]
        places = [self._places(text) for text in texts]
        at, labels = torch.zeros(2, _BATCH, max(map(len, places)), dtype=torch.long)
        labels.fill_(_IGNORED)
        for row, chosen in enumerate(places):
            at[row, : len(chosen)] = torch.tensor(chosen)
            labels[row, : len(chosen)] = tokens[row, chosen]
            tokens[row, chosen] = self._tokenizer.mask_token_id
        logits = self.logits(tokens, mask, at)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def logits(self, tokens: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) and positions (B, M) → (B, M, V): those of the whole model there."""
        perceiver = self._model.perceiver
        inputs, _, _ = perceiver.input_preprocessor(tokens)
        latents = perceiver.encoder(
            perceiver.embeddings(batch_size=len(tokens)),
            inputs=inputs,
            inputs_mask=torch.where(mask[:, None, None] > 0, 0.0, -1e4),
        ).last_hidden_state
        queries = perceiver.decoder.output_position_encodings.position_embeddings[at]
        vectors = perceiver.decoder(queries, latents).logits
        found: torch.Tensor = self._model.embedding_decoder(
            vectors, perceiver.input_preprocessor.embeddings
        )
        return found

    def _places(self, text: str) -> list[int]:
        """Tokens to mask: those of whole words, behind the first token."""
        words = [(len(text[: word.start()].encode()), len(word[0])) for word in WORD.finditer(text)]
        count = max(1, round(_MASKED_SHARE * len(words)))
        chosen = self._random.sample(words, count)
        return [1 + start + offset for start, length in chosen for offset in range(length)]


def rows(seed: int) -> Iterator[str]:
    """Endless rows: one sentence, or as many as the latents have places for."""
    rng = Random(f"rows {seed}")
    row, most = "", 0
    for pair in sentences("train", sys.maxsize, seed):
        if len(pair.english.encode()) > MOST_BYTES:
            continue
        longer = f"{row} {pair.english}".strip()
        if row and len(longer.encode()) > most:
            yield row
            longer = pair.english
            most = 0 if rng.random() < _SINGLE_SHARE else _ROW_BYTES
        row = longer


if __name__ == "__main__":
    main()
