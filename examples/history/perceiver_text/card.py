"""Measures the example Perceiver of texts by `transformers` and writes its model card.

python -m examples.history.perceiver_text.card FOLDER
"""

from pathlib import Path
from typing import Any

import torch
from transformers import PerceiverConfig, PerceiverForMaskedLM, PerceiverTokenizer

from examples.bert.scores import TEST_COUNT, TEST_SEED
from examples.history.perceiver_text.scores import (
    FillBytesFunction,
    masked_bytes_right,
    masked_words_right,
    most_frequent_words_right,
)
from examples.texts.grammar import Split
from examples.training.card import table_rows, write_again
from examples.training.checkpoint_folder import CardTemplate
from export.training.functions import in_batches

_SPLITS: tuple[Split, ...] = ("held_out", "compositional")
_CARD = CardTemplate("""\
pipeline_tag: fill-mask
---
# history-perceiver-text

Fills masked bytes in English sentences of the example world: "My sister [MASK][MASK] a teacher."

Architecture: `PerceiverForMaskedLM` ($shape, texts of at most \
$positions bytes), $parameters M parameters, $megabytes MB in float16.

Trained on the English side of the training split of `examples/texts/grammar.py`, one
sentence a row or several, a quarter of their words masked byte by byte. The latents begin at places
of the text (`examples/history/perceiver_text/train.py`):

$runs

Measured by `examples/history/perceiver_text/scores.py` from this folder, in float32, on $count
sentences a cell (seed $seed). One word is masked, byte by byte: its length is known, unlike behind
BERT's one mask, and every byte must be the most likely one. Held out: sentences that training never
shows. Compositional: each has a pair of words, or a word in a construction, that training never
combines.

| | held out | compositional |
|---|---|---|
$scores
""")


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the table.

    `runs` has a line for each training run.
    """
    fill, asked = filler(folder), (TEST_COUNT, TEST_SEED)
    rows = {
        "every byte of the masked word": [
            masked_words_right(fill, split, *asked) for split in _SPLITS
        ],
        "its bytes": [masked_bytes_right(fill, split, *asked) for split in _SPLITS],
        "control: the word, the others in random order": [
            masked_words_right(fill, split, *asked, is_shuffled=True) for split in _SPLITS
        ],
        "baseline: the most frequent word of this length": [
            most_frequent_words_right(split, *asked) for split in _SPLITS
        ],
    }
    table = table_rows(rows)
    config = PerceiverConfig.from_pretrained(folder)
    _CARD.write(
        folder,
        runs=runs,
        scores=table,
        shape=f"{config.num_latents} latents of width {config.d_latents}, "
        f"{config.num_self_attends_per_block} layers between them",
        positions=config.max_position_embeddings - 2,
        count=TEST_COUNT,
        seed=TEST_SEED,
    )
    return table


def filler(folder: Path) -> FillBytesFunction:
    """The most likely byte behind each mask, by `transformers` alone, in float32."""
    network: Any = PerceiverForMaskedLM
    model = network.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PerceiverTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def fill(texts: list[str]) -> list[str]:
        encoded = tokenizer(texts, padding=True, return_tensors="pt")
        best = model(**encoded).logits.argmax(-1)[:, : encoded["input_ids"].shape[1]]
        return [
            tokenizer.decode(row[ids == tokenizer.mask_token_id].tolist())
            for ids, row in zip(encoded["input_ids"], best, strict=True)
        ]

    return in_batches(fill)


if __name__ == "__main__":
    write_again(write_card, __doc__)
