"""The committed BERT folders are small and solve their tasks, each by more than its words."""

import pytest

from examples import CHECKPOINTS
from examples.bert.card import CARDS
from examples.bert.functions import classifier, embedder, filler, ranker, tagger
from examples.bert.scores import (
    agreement_accuracy,
    masked_word_accuracy,
    paraphrase_top1,
    ranking_top1,
    role_f1,
    same_words_accuracy,
    sentiment_accuracy,
    shared_words_top1,
)
from examples.bert.train import HEADS

COUNT = 100  # texts a score


def test_every_head_has_a_card():
    assert {head.folder for head in HEADS} == set(CARDS)


@pytest.mark.parametrize("name", CARDS)
def test_checkpoint_is_small(name: str):
    files = [path for path in (CHECKPOINTS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 1_500_000


def test_masked_words_follow_from_the_others():
    fill = filler(CHECKPOINTS / "example-bert")
    scored = masked_word_accuracy(fill, "compositional", COUNT, seed=3)
    assert scored >= masked_word_accuracy(fill, "compositional", COUNT, 3, is_shuffled=True) + 0.15
    assert agreement_accuracy(fill, "compositional", COUNT, seed=3) >= 0.8


def test_sentiments_follow_from_the_order_of_words():
    classify = classifier(CHECKPOINTS / "example-bert-sentiment")
    assert sentiment_accuracy(classify, "compositional", COUNT, seed=3) >= 0.85
    assert same_words_accuracy(classify, COUNT, seed=3) >= 0.85  # a bag of words: 0.5


def test_roles_follow_from_the_sentence_and_not_from_the_names():
    tag = tagger(CHECKPOINTS / "example-bert-tags")
    assert role_f1(tag, "held_out", COUNT, seed=3) >= 0.95
    assert role_f1(tag, "held_out", COUNT, seed=3, is_swapped=True) < 0.3


def test_answers_are_ranked_above_similar_facts():
    rank = ranker(CHECKPOINTS / "example-bert-rerank")
    assert ranking_top1(rank, "compositional", COUNT, seed=3) >= 0.9
    assert ranking_top1(rank, "compositional", COUNT, seed=3, is_swapped=True) < 0.4


def test_paraphrases_are_nearer_than_sentences_of_the_same_words():
    embed = embedder(CHECKPOINTS / "example-bert-embed")
    by_words = shared_words_top1("compositional", COUNT, seed=3)
    assert paraphrase_top1(embed, "compositional", COUNT, seed=3) >= by_words + 0.15
