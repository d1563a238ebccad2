"""The committed recurrent folders are small, and solve their tasks by more than single words."""

import pytest

from examples import HISTORY_CHECKPOINTS
from examples.bert.scores import same_words_accuracy, sentiment_accuracy
from examples.history.recurrent.card import CARDS
from examples.history.recurrent.everyday_sentences import LANGUAGES, unrelated_sentences
from examples.history.recurrent.functions import scorer, text_classifier, word_tagger
from examples.history.recurrent.parts_of_speech import FAMOUS, FAMOUS_TAGS
from examples.history.recurrent.review_templates import FAMOUS as FAMOUS_REVIEWS
from examples.history.recurrent.scores import (
    ambiguous_accuracy,
    bits_per_character,
    language_accuracy,
    language_sentences,
    most_frequent_tags,
    tag_f1,
    template_accuracy,
    unknown_accuracy,
)
from examples.history.recurrent.train import EXAMPLES

COUNT = 100  # texts a score


def test_every_example_has_a_card() -> None:
    assert {example.folder for example in EXAMPLES} == set(CARDS)


@pytest.mark.parametrize("name", sorted(CARDS))
def test_checkpoint_is_small(name: str) -> None:
    files = [path for path in (HISTORY_CHECKPOINTS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 1_000_000


def test_tags_follow_from_the_sentence() -> None:
    tag = word_tagger(HISTORY_CHECKPOINTS / "history-rnn-tagger")
    (famous,) = tag([FAMOUS])
    assert tuple(label for _, _, label in famous) == FAMOUS_TAGS
    assert tag_f1(tag, "compositional", COUNT, seed=3) >= 0.97
    control = ambiguous_accuracy(most_frequent_tags, "compositional", COUNT, seed=3)
    assert ambiguous_accuracy(tag, "compositional", COUNT, seed=3) >= control + 0.1
    assert unknown_accuracy(tag, "held_out", COUNT, seed=3) >= 0.75


def test_sentiments_follow_from_the_order_of_words() -> None:
    classify = text_classifier(HISTORY_CHECKPOINTS / "history-rnn-sentiment")
    assert classify(list(FAMOUS_REVIEWS)) == list(FAMOUS_REVIEWS.values())
    assert sentiment_accuracy(classify, "compositional", COUNT, seed=3) >= 0.8
    assert same_words_accuracy(classify, COUNT, seed=3) >= 0.7  # a bag of words: 0.5
    assert template_accuracy(classify, "templates", COUNT, seed=3) >= 0.75


def test_languages_are_told_apart_by_their_characters() -> None:
    classify = text_classifier(HISTORY_CHECKPOINTS / "history-rnn-languages")
    asked = language_sentences("compositional", COUNT, seed=3)
    assert {one.language for one in asked} == set(LANGUAGES)
    assert language_accuracy(classify, asked) >= 0.95
    assert language_accuracy(classify, unrelated_sentences()) >= 0.85
    assert language_accuracy(classify, asked, prefix=10) >= 0.75


@pytest.mark.parametrize(("name", "most"), [("chars", 1.7), ("words", 1.3)])
def test_language_models_expect_english(name: str, most: float) -> None:
    """In bits a character; an even choice of 27 characters takes 4.8."""
    score = scorer(HISTORY_CHECKPOINTS / f"history-rnn-lm-{name}")
    assert bits_per_character(score, "held_out", COUNT, seed=3) <= most
    (sense,), (nonsense,) = score(["The old man sleeps."]), score(["sleeps The. man old"])
    assert sense > nonsense
