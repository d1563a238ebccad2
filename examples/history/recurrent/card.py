"""Measures the recurrent examples by `torch.nn` and writes their model cards.

python -m examples.history.recurrent.card FOLDER
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.bert.scores import same_words_accuracy, sentiment_accuracy
from examples.history.recurrent.everyday_sentences import unrelated_sentences
from examples.history.recurrent.scores import (
    PREFIXES,
    TEST_COUNT,
    TEST_SEED,
    ambiguous_accuracy,
    bits_per_character,
    language_accuracy,
    language_sentences,
    least_language_accuracy,
    most_frequent_tags,
    scorer,
    tag_f1,
    template_accuracy,
    text_classifier,
    unknown_accuracy,
    word_perplexity,
    word_tagger,
)
from examples.texts.grammar import Split
from examples.training.card import percent, write_again, write_text_card

_MEASURED = (
    "Measured by `examples/history/recurrent/scores.py` with PyTorch's own layers from this "
    "folder, in\n"
    f"float32, on {TEST_COUNT} texts a cell (seed {TEST_SEED}). PyTorch, ONNX, int8 and the "
    "served API beside\neach other, and beside the systems that followed: examples/history, "
    "made by `triptych compare`."
)
_SPLITS: tuple[Split, ...] = ("held_out", "compositional")

Rows = dict[str, tuple[str, ...]]
"""Name of a measure → its cells."""


@dataclass(frozen=True)
class Card:
    """The words of one folder's card, and its table by a function of the folder."""

    pipeline: str
    summary: str
    table: Callable[[Path], str]


def _table(columns: tuple[str, ...], rows: Rows) -> str:
    head = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    return "\n".join(head + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()])


def _language_model(folder: Path) -> str:
    score = scorer(folder)
    rows: Rows = {
        "bits per character": tuple(
            f"{bits_per_character(score, split, TEST_COUNT, TEST_SEED):.3f}" for split in _SPLITS
        ),
        "perplexity per word": tuple(
            f"{word_perplexity(score, split, TEST_COUNT, TEST_SEED):.2f}" for split in _SPLITS
        ),
    }
    return _table(("held out", "compositional"), rows)


def _tagger(folder: Path) -> str:
    tag = word_tagger(folder)
    measures = {
        "F1": tag_f1,
        "right tags of words with several in training": ambiguous_accuracy,
        "right tags of unknown words, by context alone": unknown_accuracy,
    }
    rows: Rows = {}
    for who, function in (
        ("", tag),
        (", control: each word's most frequent tag", most_frequent_tags),
    ):
        for name, measure in measures.items():
            rows[name + who] = tuple(
                percent(measure(function, split, TEST_COUNT, TEST_SEED)) for split in _SPLITS
            )
    return _table(("held out", "compositional"), rows)


def _sentiment(folder: Path) -> str:
    classify = text_classifier(folder)
    shared: Rows = {
        "right sentiments": tuple(
            percent(sentiment_accuracy(classify, split, TEST_COUNT, TEST_SEED)) for split in _SPLITS
        ),
        "control: words in random order": tuple(
            percent(sentiment_accuracy(classify, split, TEST_COUNT, TEST_SEED, is_shuffled=True))
            for split in _SPLITS
        ),
        "two reviews of the same words (a bag of words: 50 %)": (
            percent(same_words_accuracy(classify, TEST_COUNT, TEST_SEED)),
            "",
        ),
    }
    templates: Rows = {
        "right sentiments": tuple(
            percent(template_accuracy(classify, split, TEST_COUNT, TEST_SEED))
            for split in ("templates", "compositional")
        )
    }
    return (
        "Reviews of `examples/bert/reviews.py`, the data of `example-bert-sentiment`:\n\n"
        f"{_table(('held out', 'compositional'), shared)}\n\n"
        "Reviews of `examples/history/recurrent/review_templates.py`:\n\n"
        f"{_table(('templates that training never shows', 'compositional'), templates)}"
    )


def _languages(folder: Path) -> str:
    classify = text_classifier(folder)
    drawn = (language_sentences(split, TEST_COUNT, TEST_SEED) for split in _SPLITS)
    asked = (*drawn, unrelated_sentences())
    rows: Rows = {
        f"first {prefix} characters" if prefix else "whole sentences": tuple(
            percent(language_accuracy(classify, each, prefix)) for each in asked
        )
        for prefix in (*PREFIXES, None)
    }
    worst = (least_language_accuracy(classify, each) for each in asked)
    rows["the language that is found least often"] = tuple(
        f"{code} {percent(share)}" for code, share in worst
    )
    return (
        "*Unrelated*: 60 sentences of no pattern, written for the test alone.\n\n"
        f"{_table(('held out', 'compositional', 'unrelated'), rows)}"
    )


CARDS = {
    "history-rnn-lm-chars": Card(
        "text-generation",
        "A language model of characters, for sentences and captions of the example world: the\n"
        "same paragraphs as `example-gpt`'s, one character a step.",
        _language_model,
    ),
    "history-rnn-lm-words": Card(
        "text-generation",
        "A language model of words, for sentences and captions of the example world: the same\n"
        "paragraphs as `example-gpt`'s, one word a step.",
        _language_model,
    ),
    "history-lstmn-lm-words": Card(
        "text-generation",
        "A Long Short-Term Memory-Network: the language model of words of `history-rnn-lm-words`,\n"
        "whose steps attend to all earlier states instead of reading the last one.",
        _language_model,
    ),
    "history-nas-lm-words": Card(
        "text-generation",
        "The language model of words of `history-rnn-lm-words`, with the cell that architecture\n"
        "search found.",
        _language_model,
    ),
    "history-rnn-tagger": Card(
        "token-classification",
        'Tags the part of speech of each word: "my dog ate the assignment" is possessive, noun,\n'
        "verb, determiner, noun. Held out: sentences that training never shows. Compositional:\n"
        "each sentence has a pair of content words that training never combines, such as a verb\n"
        "with that object.",
        _tagger,
    ),
    "history-rnn-sentiment": Card(
        "text-classification",
        'Classifies short reviews as negative, neutral or positive: "this restaurant has good\n'
        'food", "this restaurant is the worst", with negations and concessions.',
        _sentiment,
    ),
    "history-rnn-languages": Card(
        "text-classification",
        "Tells German, English, Spanish, French, Italian and Portuguese apart, by characters.\n"
        "Labels are ISO 639-1 codes. Held out: sentences that training never shows.\n"
        "Compositional: each has a verb with a subject or object that training never combines.",
        _languages,
    ),
}


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the tables.

    `runs` has a line for each training run.
    """
    card = CARDS[folder.name]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    directions = "both directions" if config.get("bidirectional") else "one direction"
    scores = card.table(folder)
    return write_text_card(
        folder,
        pipeline=card.pipeline,
        summary=card.summary,
        architecture=f"`{config['architectures'][0]}`, a format of our own (docs/checkpoints.md): "
        f"cell `{config['cell']}`, {directions}, {config['vocab_size']} tokens of width "
        f"{config['embedding_size']}, states of {config['hidden_size']}"
        + (f", attention of {config['attention_size']}" if "attention_size" in config else ""),
        runs=runs,
        measured=_MEASURED,
        scores=scores,
    )


if __name__ == "__main__":
    write_again(write_card, __doc__)
