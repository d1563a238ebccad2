"""The model card of `example-en-fr` with measured scores, and its translations.

python -m examples.en_fr.card "The European Parliament rejected the budget."
"""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from examples import checkpoint
from examples.en_fr.gazette import FAMOUS
from examples.en_fr.scores import alignment_share, exact_share, score
from examples.texts.grammar import Split
from examples.training.card import score_rows, translate_texts
from examples.training.checkpoint_folder import CardTemplate
from export.graphs.source_model import SourceModel
from export.models.recurrent.bahdanau import Bahdanau
from export.training.bahdanau import reader, translator

CHECKPOINT = checkpoint("example-en-fr")
_CARD = CardTemplate("""\
language: [en, fr]
pipeline_tag: translation
---
# example-en-fr

A small English to French translator of an invented gazette (`examples/en_fr/gazette.py`), by
the network of Bahdanau, Cho and Bengio 2015 (arXiv 1409.0473): a bidirectional GRU encoder and a
GRU decoder that attends to the source at every step. It shows that recurrent generators are served
like any other; it does not translate text outside the gazette.

| | |
|---|---|
| architecture | $shape, $parameters M parameters, $megabytes MB in float16 |
| training data | sentences generated from the training split, none kept, none repeated on purpose |
| trained by | `$command`, $minutes minutes on one CPU thread, seed $seed |
| licence | Apache-2.0; the data is the project's own |

Measured from this folder, loaded in float32, on $count sentences (seed $test_seed) with sacrebleu:

| split | decoding | BLEU | exact |
|---|---|---|---|
$scores

*Held out*: sentences not in the training data. *Compositional*: each sentence has at least one
word × construction pair that is not in the training data. *Shuffled*: the same translations against
other sentences' references.

**Alignment.** Attention is learnt from translations alone. The share of French nouns and
adjectives whose attention is highest at the English word that the grammar translated (greedy; the
words of a sentence that is not translated exactly count as wrong):

| split | all | in reversed phrases |
|---|---|---|
$alignments

The sentence of the paper's figure 3a. *European Economic Area* is in no training sentence, in any
spelling (beam 4):

$famous

Its attention, in percent, a row for each French word:

$matrix
""")


def write_card(folder: Path, count: int = 1000, test_seed: int = 0, **facts: object) -> str:
    """Measures the folder, writes its README.md and returns its tables.

    `facts` describe the training: `command`, `minutes`, `seed`.
    """
    network = SourceModel.open(folder).network
    assert isinstance(network, Bahdanau)
    config = network.config
    scores = "\n".join(score_rows(translator, score, exact_share, folder, count, test_seed))
    alignments = "\n".join(_alignment_rows(folder, count, test_seed))
    _CARD.write(
        folder,
        facts,
        shape=f"words of {config.word_width}, states of {config.hidden_width} a direction, "
        f"attention and readout of {config.attention_width} and {config.readout_width}, "
        f"{config.vocabulary_size} words of both languages",
        scores=scores,
        alignments=alignments,
        count=count,
        test_seed=test_seed,
        famous=f"- {FAMOUS[0]} → {translator(folder, 4)([FAMOUS[0]])[0]}",
        matrix=_matrix(folder),
    )
    return f"{scores}\n{alignments}"


def _alignment_rows(folder: Path, count: int, seed: int) -> Iterator[str]:
    splits: tuple[Split, ...] = ("compositional", "held_out")
    read = reader(folder, beams=1)
    for split in splits:
        shares = [
            alignment_share(read, split, count, seed, only_reversed)
            for only_reversed in (False, True)
        ]
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
        yield f"| {split.replace('_', ' ')} | {cells} |"


def _matrix(folder: Path) -> str:
    """The attention of the paper's sentence as a table, in percent."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (reading,) = reader(folder, beams=4)([FAMOUS[0]])
    source, target = (
        [token.strip("▁").replace("</s>", "*end*") for token in tokenizer.encode(text).tokens]
        for text in (FAMOUS[0], reading.text)
    )
    lines = [f"| | {' | '.join(source)} |", "|---" * (1 + len(source)) + "|"]
    for word, weights in zip(target, reading.attention, strict=False):
        lines.append(f"| {word} | {' | '.join(_percent(weight) for weight in weights)} |")
    return "\n".join(lines)


def _percent(weight: float) -> str:
    """In bold where most of the attention is, empty where there is none."""
    number = f"{100 * weight:.0f}"
    return f"**{number}**" if weight >= 0.5 else number if number != "0" else ""


if __name__ == "__main__":
    translate_texts(translator, CHECKPOINT, "Translate sentences of the gazette.")
