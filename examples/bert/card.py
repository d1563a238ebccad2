"""Measures the folders of the example BERT by `transformers` and writes their model cards.

python -m examples.bert.card FOLDER
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.bert.scores import (
    DOCUMENTS,
    TEST_COUNT,
    TEST_SEED,
    agreement_accuracy,
    answer_exact,
    answer_f1,
    answerer,
    classifier,
    embedder,
    filler,
    masked_word_accuracy,
    no_answer_accuracy,
    paraphrase_top1,
    ranker,
    ranking_top1,
    role_f1,
    same_words_accuracy,
    sentiment_accuracy,
    shared_words_top1,
    tagger,
)
from examples.texts.grammar import Split
from examples.training.card import table_rows, write_again, write_text_card

_SHAPE = "3 layers of width 64 with 4 heads, uncased WordPiece of the world's words"
_MEASURED = (
    "Measured by `examples/bert/scores.py` from this folder, in float32, on "
    f"{TEST_COUNT} texts a cell\n(seed {TEST_SEED}). Held out: sentences, or made-up words, that "
    "training never shows. Compositional:\neach text has a pair of words, or a word in a "
    "construction, that training never combines."
)
_SPLITS: tuple[Split, ...] = ("held_out", "compositional")

Score = Callable[[Split], float]


@dataclass(frozen=True)
class Card:
    """The words of one folder's card, and its measures by a function of the folder."""

    pipeline: str
    network: str
    summary: str
    scores: Callable[[Path], dict[str, Score]]


def _scored(measure: Callable[..., float], *function: Any, **options: bool) -> Score:
    """A measure of a function as one of a split alone."""
    return lambda split: measure(*function, split, TEST_COUNT, TEST_SEED, **options)


def _filling(folder: Path) -> dict[str, Score]:
    fill = filler(folder)
    return {
        "the masked word is the most likely one": _scored(masked_word_accuracy, fill),
        "control: the other words in random order": _scored(
            masked_word_accuracy, fill, is_shuffled=True
        ),
        'the right one of "am", "is" and "are"': _scored(agreement_accuracy, fill),
    }


def _classifying(folder: Path) -> dict[str, Score]:
    classify = classifier(folder)
    return {
        "right sentiments": _scored(sentiment_accuracy, classify),
        "control: words in random order": _scored(sentiment_accuracy, classify, is_shuffled=True),
        "two reviews of the same words (a bag of words: 50 %)": lambda _: same_words_accuracy(
            classify, TEST_COUNT, TEST_SEED
        ),
    }


def _tagging(folder: Path) -> dict[str, Score]:
    tag = tagger(folder)
    return {
        "F1 of whole roles": _scored(role_f1, tag),
        "control: the next sentence's roles": _scored(role_f1, tag, is_swapped=True),
    }


def _ranking(folder: Path) -> dict[str, Score]:
    rank = ranker(folder)
    return {
        f"the answer first of {DOCUMENTS} documents": _scored(ranking_top1, rank),
        "control: the next question": _scored(ranking_top1, rank, is_swapped=True),
    }


def _answering(folder: Path) -> dict[str, Score]:
    answer = answerer(folder)
    return {
        "exact match": _scored(answer_exact, answer),
        "F1 of words": _scored(answer_f1, answer),
        "exact match, forms of questions that training never shows": _scored(
            answer_exact, answer, has_withheld_forms=True
        ),
        "control: the next question's passage": _scored(answer_exact, answer, is_swapped=True),
        "right that a passage has an answer or none": _scored(no_answer_accuracy, answer),
    }


def _embedding(folder: Path) -> dict[str, Score]:
    return {
        "the paraphrase is the nearest sentence": _scored(paraphrase_top1, embedder(folder)),
        "control: nearest by shared words": _scored(shared_words_top1),
    }


CARDS = {
    "example-bert": Card(
        "fill-mask",
        "BertForMaskedLM",
        'Fills masks in sentences of the example world: "My sister [MASK] a teacher."',
        _filling,
    ),
    "example-bert-sentiment": Card(
        "text-classification",
        "BertForSequenceClassification",
        "Classifies short reviews as negative, neutral or positive, with negations and concessions:"
        '\n"The food was not bad at all", "I doubt that this movie is interesting".',
        _classifying,
    ),
    "example-bert-tags": Card(
        "token-classification",
        "BertForTokenClassification",
        "Tags persons, actions, things, places and times of an event. Made-up words are persons\n"
        'or places by their position alone: "Last Friday, Kugfen sold a big lamp in Sovsub."',
        _tagging,
    ),
    "example-bert-rerank": Card(
        "text-ranking",
        "BertForSequenceClassification",
        "Scores how well a sentence answers a question about an event:\n"
        '"Who sold a lamp in London?" and "Last Friday, a lamp was sold in London by Ana."\n'
        "Two heads are initialised by `examples/bert/train.py`, not at random.",
        _ranking,
    ),
    "example-bert-answer": Card(
        "question-answering",
        "BertForQuestionAnswering",
        "Finds the answer to a question about an event in a passage, or that there is none:\n"
        '"Where did Ana sell a lamp?" in "It was Ana who sold a lamp in Paris. Pedro slept."\n'
        "Training starts from the body of `example-bert-rerank`.",
        _answering,
    ),
    "example-bert-embed": Card(
        "sentence-similarity",
        "BertModel",
        "Embeds sentences about events, paraphrases close to each other, in the format of\n"
        "`sentence-transformers` (mean pooling, unit length): active and passive, any order.",
        _embedding,
    ),
}


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the table.

    `runs` has a line for each training run.
    """
    card = CARDS[folder.name]
    shares = {
        name: [score(split) for split in _SPLITS] for name, score in card.scores(folder).items()
    }
    scores = table_rows(shares)
    write_text_card(
        folder,
        pipeline=card.pipeline,
        summary=card.summary,
        architecture=f"`{card.network}` ({_SHAPE})",
        runs=runs,
        measured=_MEASURED,
        scores=f"| | held out | compositional |\n|---|---|---|\n{scores}",
    )
    return scores


if __name__ == "__main__":
    write_again(write_card, __doc__)
