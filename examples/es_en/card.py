"""The model card of `example-es-en` with measured scores, and its translations.

python -m examples.es_en.card "El mundo no es suficiente."
"""

from pathlib import Path

from transformers import MarianMTModel

from examples import checkpoint
from examples.es_en.scores import exact_share, score
from examples.texts.grammar import WITHHELD_SENTENCES
from examples.training.card import score_rows, translate_texts
from examples.training.checkpoint_folder import CardTemplate
from export.training.marian import translator

CHECKPOINT = checkpoint("example-es-en")
_CARD = CardTemplate("""\
language: [es, en]
pipeline_tag: translation
---
# example-es-en

A small Spanish to English translator of an invented world, in MarianMT format: it covers the
grammar and the words of `examples/texts/grammar.py` only. With it, every step from
checkpoint to service can be tested and measured without network access. It does not translate other
Spanish.

| | |
|---|---|
| architecture | MarianMT, $shape, $parameters M parameters, float16 on disk |
| training data | sentences generated from the training split, none kept, none repeated on purpose |
| trained by | `$command`, $minutes minutes on one CPU thread, bfloat16 autocast, seed $seed |
| licence | Apache-2.0; the data is the project's own |

Measured from this folder, loaded in float32, with sacrebleu on $count sentences (seed $test_seed):

| split | decoding | BLEU | exact |
|---|---|---|---|
$rows

*Held out*: sentences not in the training data. *Compositional*: each sentence has at least one
word × construction pair that is not in the training data (a verb never negated, a noun never with
that adjective). *Shuffled*: the same translations against other sentences' references.

Not in the training data in any spelling either, with their translations (beam 4):

$examples
""")


def write_card(folder: Path, count: int = 1000, test_seed: int = 0, **facts: object) -> str:
    """Measures the folder, writes its README.md and returns the table of scores.

    `facts` describe the training: `command`, `minutes`, `seed`.
    """
    rows = list(score_rows(translator, score, exact_share, folder, count, test_seed))
    model = MarianMTModel.from_pretrained(folder)
    config = model.config
    _CARD.write(
        folder,
        facts,
        shape=f"{config.encoder_layers} + {config.decoder_layers} layers, width {config.d_model}",
        parameters=f"{model.num_parameters() / 1e6:.2f}",
        rows="\n".join(rows),
        count=count,
        test_seed=test_seed,
        examples=_examples(folder),
    )
    return "\n".join(rows)


def _examples(folder: Path) -> str:
    spoken = list(WITHHELD_SENTENCES)
    texts = [*spoken, *(text.capitalize() + "." for text in spoken)]
    translations = translator(folder, 4)(texts)
    return "\n".join(f"- {a} → {b}" for a, b in zip(texts, translations, strict=True))


if __name__ == "__main__":
    translate_texts(translator, CHECKPOINT, "Translate sentences of the example world.")
