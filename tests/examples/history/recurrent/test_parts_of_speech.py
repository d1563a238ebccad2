"""Gold parts of speech: splits that share nothing, and words as the tokenizer divides them."""

from itertools import islice

import pytest

from examples.history.recurrent.parts_of_speech import (
    FAMOUS,
    FAMOUS_TAGS,
    TaggedSentence,
    split_of,
    tagged_sentences,
)
from examples.history.recurrent.scores import most_frequent_tags, tag_f1
from examples.history.recurrent.tagged_phrases import TAGS
from examples.history.recurrent.tokenizers import plain_words
from examples.texts.splits import Split

COUNT = 300
SPLITS: tuple[Split, ...] = ("train", "held_out", "compositional")


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_are_those_of_their_split_and_repeatable(split: Split) -> None:
    drawn = list(islice(tagged_sentences(split, 3), COUNT))
    assert {split_of(one) for one in drawn} == {split}
    assert drawn == list(islice(tagged_sentences(split, 3), COUNT))
    assert {tag for one in drawn for _, tag in one.words} == set(TAGS)


def test_words_lie_where_the_tokenizer_finds_them() -> None:
    drawn = list(islice(tagged_sentences("train", 4), COUNT))
    tokenizer = plain_words([one.text for one in drawn])
    for sentence in drawn:
        text, spans = sentence.spans()
        assert tokenizer.encode(text).offsets == [(start, end) for start, end, _ in spans]


def test_famous_sentence_is_withheld_by_its_words() -> None:
    words = tuple(zip(FAMOUS.split(), FAMOUS_TAGS, strict=True))
    sentence = TaggedSentence(words, frozenset({"dog|eat", "eat|assignment"}))
    assert split_of(sentence) == "compositional"
    taught = islice(tagged_sentences("train", 5), 4000)
    assert not any({"dog|eat", "eat|assignment"} & one.pairs for one in taught)


def test_scores_are_those_of_the_answers() -> None:
    def right(texts: list[str]) -> list[list[tuple[int, int, str]]]:
        return [one.spans()[1] for one in islice(tagged_sentences("held_out", 1), len(texts))]

    assert tag_f1(right, "held_out", 50, 1) == 1.0
    assert 0.5 < tag_f1(most_frequent_tags, "held_out", 50, 1) < 1.0
