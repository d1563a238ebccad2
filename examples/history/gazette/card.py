"""The model cards of the small translators that `train.py` trains, with measured
scores.
"""

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from examples.en_fr.scores import LENGTHS, exact_share, length_score, score
from examples.es_en.scores import remembering
from examples.texts.grammar import Split
from examples.training.checkpoint_folder import CardTemplate
from export.checkpoint.checkpoint import open_checkpoint
from export.training import bahdanau
from export.training.functions import Translate

_CARD = CardTemplate("""\
language: [en, fr]
pipeline_tag: translation
---
# $name

One of the small English to French translators of an invented gazette
(`examples/en_fr/gazette.py`) that differ in what the decoder sees of its source, and have
about the same number of parameters. examples/history compares them, with beams. It does not
translate text outside the gazette.

| | |
|---|---|
| architecture | `$kind`: $shape |
| size | $parameters parameters, $megabytes MB in float16 |
| training data | $sentences sentences generated from the training split, none repeated on purpose |
| trained by | `$command`, on one CPU thread, seed $seed |
| licence | Apache-2.0; the data is the project's own |

Measured from this folder, loaded in float32, greedy, on $count sentences (seed $test_seed) with
sacrebleu:

| split | BLEU | exact |
|---|---|---|
$scores

BLEU on the compositional split by words and marks of the English sentence, greedy:

$lengths

*Held out*: sentences not in the training data. *Compositional*: each sentence has at least one
word × construction pair that is not in the training data. *Shuffled*: the same translations against
other sentences' references.
""")


def translator(folder: Path, beams: int) -> Translate:
    """The folder's model as a function that translates each text once."""
    return remembering(bahdanau.translator(folder, beams))


def write_card(
    folder: Path, *, command: str, steps: int, seed: int, count: int = 200, test_seed: int = 0
) -> str:
    """Measures the folder, writes its README.md and returns its table of scores."""
    values = open_checkpoint(str(folder)).config
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as tensors:
        parameters = sum(tensors.get_tensor(name).numel() for name in tensors.keys())  # noqa: SIM118
    scores = "\n".join(_score_rows(folder, count, test_seed))
    _CARD.write(
        folder,
        name=folder.name,
        kind=values["model_type"],
        shape=", ".join(f"{k} {v}" for k, v in values.items() if k not in ("model_type", "dtype")),
        parameters=f"{parameters:,}",
        megabytes=f"{file.stat().st_size / 1e6:.2f}",
        sentences=f"{64 * steps:,}",
        command=command,
        seed=seed,
        scores=scores,
        lengths=_length_table(folder),
        count=count,
        test_seed=test_seed,
    )
    return scores


def _score_rows(folder: Path, count: int, seed: int) -> Iterator[str]:
    splits: tuple[Split, ...] = ("compositional", "held_out")
    translate = translator(folder, beams=1)
    for split in splits:
        bleu = score(translate, split, count, seed)
        exact = 100 * exact_share(translate, split, count, seed)
        yield f"| {split.replace('_', ' ')} | {bleu:.2f} | {exact:.1f} % |"
    shuffled = score(translate, "compositional", count, seed, is_shuffled=True)
    yield f"| compositional, shuffled | {shuffled:.2f} | |"


def _length_table(folder: Path, count: int = 60) -> str:
    translate = translator(folder, 1)
    scores = [length_score(translate, first, last, count) for first, last in LENGTHS]
    heads = [f"{first} to {last}" for first, last in LENGTHS]
    cells = [f"{each:.1f}" for each in scores]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["--:"] * len(LENGTHS), cells))
