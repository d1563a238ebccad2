"""Reviews: negations reverse them, no word decides alone, splits are disjoint."""

import re
from collections import Counter
from functools import cache
from itertools import islice

import pytest

from examples.bert.reviews import SENTIMENTS, reviews, same_words, split_of
from examples.bert.scores import same_words_accuracy, sentiment_accuracy
from examples.texts.splits import Split


@cache
def drawn(split: Split, count: int = 300, seed: int = 3):
    return list(islice(reviews(split, seed), count))


def bag(text: str) -> list[str]:
    return sorted(re.findall("[a-z]+", text.lower()))


@pytest.mark.parametrize("split", ["train", "held_out", "compositional"])
def test_reviews_keep_to_their_split(split: Split):
    assert all(not one.pairs or split_of(one) == split for one in drawn(split))


def test_sentiments_are_balanced():
    counts = Counter(one.sentiment for one in drawn("train", 2000))
    assert set(counts) == set(SENTIMENTS)
    assert min(counts.values()) > 400
    assert 0.85 < counts["positive"] / counts["negative"] < 1.18


@pytest.mark.parametrize(
    ("construction", "sentiments"),
    [
        ("{adjective}|{{it}} is {{degree}}{{adjective}}", ("positive", "negative")),
        ("{adjective}|{{it}} was far from {{adjective}}", ("negative", "positive")),
        ("{adjective}|I do not think that {{it}} is not {{adjective}}", ("positive", "negative")),
    ],
)
def test_negations_reverse_an_adjective(construction: str, sentiments: tuple[str, str]):
    occurs = False
    for adjective, expected in zip(("good", "bad"), sentiments, strict=True):
        pairs = frozenset({construction.format(adjective=adjective)})
        found = {
            one.sentiment
            for split in ("train", "compositional")
            for one in drawn(split, 3000, seed=5)
            if one.pairs == pairs
        }
        assert found <= {expected}
        occurs |= bool(found)
    assert occurs


def test_no_word_decides_alone():
    counts: dict[str, Counter[str]] = {}
    for one in drawn("train", 12000):
        for word in set(one.text.lower().rstrip(".?").split()):
            counts.setdefault(word, Counter())[one.sentiment] += 1
    for word in ("good", "bad", "not", "boring", "never", "liked"):
        positive, negative = counts[word]["positive"], counts[word]["negative"]
        assert 0.25 < positive / (positive + negative) < 0.75, word


def test_pairs_of_the_same_words_have_opposite_sentiments():
    for one, other in same_words(100, seed=1):
        assert one.text != other.text
        assert bag(one.text) == bag(other.text)
        assert {one.sentiment, other.sentiment} == {"positive", "negative"}


def test_a_bag_of_words_gets_half_of_the_same_words():
    def classify(texts: list[str]) -> list[str]:
        return [("positive", "negative")[len(bag(text)[0]) % 2] for text in texts]

    assert same_words_accuracy(classify, 200, seed=2) == 0.5


def test_perfect_answers_score_one():
    truth = {one.text: one.sentiment for one in drawn("held_out", 100, seed=9)}
    assert sentiment_accuracy(lambda texts: [truth[t] for t in texts], "held_out", 100, 9) == 1.0
