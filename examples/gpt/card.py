"""Measures the example GPT-2 by `transformers` and writes its model card.

python -m examples.gpt.card FOLDER
"""

import argparse
from pathlib import Path

from transformers import GPT2LMHeadModel

from examples.gpt.episodes import FRESH, KNOWN, Family, questions
from examples.gpt.scores import (
    SHOTS,
    TEST_QUESTIONS,
    TEST_SEED,
    Answer,
    accuracy,
    answerer,
    continuer,
    mean,
    swapped_accuracy,
)
from examples.training.card import table_rows
from examples.training.checkpoint_folder import CardTemplate

_CARD = CardTemplate("""\
pipeline_tag: text-generation
---
# example-gpt

Continues text of the example world and learns in context: it looks up bindings that the prompt
defines.

Architecture: `GPT2LMHeadModel` ($shape, byte-level BPE of $vocabulary tokens), \
$parameters M parameters, $megabytes MB in float16.

Trained on sentences of `examples/texts/grammar.py`, captions of
`examples/scenes/scene.py` and few-shot episodes of `examples/gpt/episodes.py`, in
rows of at most 96 tokens. The heads of the first two layers are initialised by
`examples/gpt/train.py`, not at random.

- `$command`: $rows rows, $minutes minutes on one shared CPU thread

Measured by `examples/gpt/scores.py` from this folder, with greedy decoding in float32: the
share of exact answers over $count questions a cell (seed $test_seed).

Fresh bindings, all of them withheld from training; the answer occurs in the examples only. An
episode binds four words, or two groups with several members each, and the examples go through them
in turn: one example contains a quarter of the answers, or half of them.

| family | $heads | 4 examples of the next question |
|---|$rules---|
$fresh

Fixed mappings, no binding withheld:

| family | $heads |
|---|$rules
$known

A prompt with its continuation:

```
$prompt$answer
```

The continuation of an empty prompt:

> $story
""")


def write_card(folder: Path, **facts: object) -> str:
    """Measures the folder, writes its README.md and returns the tables.

    `facts` describe the training: `command`, `minutes`, `rows`.
    """
    answer_all = answerer(folder)
    fresh, known = _table(answer_all, FRESH, True), _table(answer_all, KNOWN, False)
    model = GPT2LMHeadModel.from_pretrained(folder)
    config = model.config
    (example,) = questions(next(one for one in FRESH if one.name == "code words"), 4, 1, seed=1)
    _CARD.write(
        folder,
        facts,
        shape=f"{config.n_layer} layers of width {config.n_embd} with {config.n_head} heads",
        vocabulary=config.vocab_size,
        heads=" | ".join(f"{shots} examples" for shots in SHOTS).replace("1 examples", "1 example"),
        rules="---|" * len(SHOTS),
        fresh=fresh,
        known=known,
        count=TEST_QUESTIONS,
        test_seed=TEST_SEED,
        prompt=example.text,
        answer=f" {answer_all([example])[0]}",
        story=continuer(folder)(""),
    )
    return f"{fresh}\n{known}"


def _table(answer_all: Answer, families: tuple[Family, ...], has_control: bool) -> str:
    """One row for each family, then their mean; the control is the last column."""
    rows = {
        family.name: [
            accuracy(answer_all, family, shots, TEST_QUESTIONS, TEST_SEED) for shots in SHOTS
        ]
        + (
            [swapped_accuracy(answer_all, family, 4, TEST_QUESTIONS, TEST_SEED)]
            if has_control
            else []
        )
        for family in families
    }
    rows["mean"] = [mean(column) for column in zip(*rows.values(), strict=True)]
    return table_rows(rows)


def main() -> None:
    """Measures a folder again; the facts of its training are options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--command", required=True, help="the training command")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--minutes", required=True)
    arguments = parser.parse_args()
    print(
        write_card(
            arguments.folder,
            command=arguments.command,
            rows=arguments.rows,
            minutes=arguments.minutes,
        )
    )


if __name__ == "__main__":
    main()
