"""Trains `history-perceiver-text`: a Perceiver IO that fills masked bytes of English sentences.

Built, trained and saved with `transformers`, on the sentences of `example-bert`'s test of masked
words. No vocabulary is learnt: a text is its bytes, read into a fixed number of latents, and only
the masked positions are decoded.

    python -m examples.history.perceiver_text.train
"""

import argparse
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import nn
from transformers import PerceiverConfig, PerceiverForMaskedLM, PerceiverTokenizer

from examples import checkpoint
from examples.history.perceiver_text.card import write_card
from examples.history.perceiver_text.initialisation import SPACING, initialise_places
from examples.history.perceiver_text.scores import MOST_BYTES, WORD
from examples.texts.grammar import sentences
from examples.training.checkpoint_folder import run_line, runs_of, save_half, start, training_flags
from examples.training.loop import Recipe, train

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
