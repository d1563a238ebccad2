"""Data and committed folders of the BERT examples."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import islice
from random import Random

import pytest

from examples import CHECKPOINTS
from examples.bert import scores
from examples.bert.card import CARDS
from examples.bert.facts import ASKED, facts, near_misses, question, sentence_of, text_of, wordings
from examples.bert.passages import asked_passages
from examples.bert.reviews import SENTIMENTS, reviews, same_words, split_of
from examples.bert.train import HEADS
from examples.texts.bindings import FIRST_HALVES, SECOND_HALVES, is_withheld
from examples.texts.grammar import Split

MADE_UP = {first + second for first in FIRST_HALVES for second in SECOND_HALVES}


def drawn(split: Split, count: int = 200, seed: int = 3):
    return list(islice(facts(split, seed), count))


def words_of(text: str) -> list[str]:
    return text.lower().replace(",", "").rstrip(".?").split()


def test_same_seed_draws_the_same_facts():
    assert drawn("train", 20) == drawn("train", 20) != drawn("train", 20, seed=4)


def test_wordings_are_different_sentences_with_the_same_roles():
    for fact in drawn("train"):
        told = [text_of(spans) for spans in wordings(fact)]
        assert len({text for text, _ in told}) == len(told)
        for text, roles in told:
            found = {(text[start:end].lower(), role) for start, end, role in roles}
            expected = {(fact.agent, "PERSON"), (fact.place, "PLACE"), (fact.time, "TIME")}
            expected.add((fact.patient, "PERSON" if fact.is_about_people else "THING"))
            assert {(words.lower(), role) for words, role in expected} < found
            assert sorted(role for _, role in found).count("ACTION") == 1


def test_known_fact_in_its_wordings():
    fact = next(one for one in facts("train", 1) if one.agent == "Carmen")
    assert sentence_of(wordings(fact)[0]) == (
        "Carmen read the dictionary on the farm last Thursday."
    )
    assert sentence_of(wordings(fact)[3]) == (
        "The dictionary was read by Carmen on the farm last Thursday."
    )
    assert sentence_of(question(fact, "place")) == (
        "Where did Carmen read the dictionary last Thursday?"
    )


@pytest.mark.parametrize("asked", ASKED)
def test_question_omits_the_role_that_it_asks_for(asked):
    omitted = {"agent": "agent", "patient": "patient", "place": "place", "time": "time"}[asked]
    for fact in drawn("held_out"):
        text = sentence_of(question(fact, asked))
        for role in ("agent", "patient", "place", "time"):
            value = getattr(fact, role)
            is_named = value.lower() in text.lower()
            assert is_named == (role != omitted) or value in (fact.agent, fact.patient, fact.place)


def test_near_misses_are_other_facts_with_almost_the_same_words():
    rng = Random(0)
    for fact in drawn("train"):
        for near in near_misses(fact, rng, "train"):
            assert near != fact
            here, there = (set(words_of(sentence_of(wordings(each)[0]))) for each in (fact, near))
            assert len(here & there) >= 3


def test_near_misses_differ_in_a_role_that_is_not_asked_for():
    rng = Random(0)
    for fact in drawn("compositional"):
        for asked in ASKED:
            for near in near_misses(fact, rng, "compositional", asked):
                assert question(near, asked) != question(fact, asked)


def test_training_has_no_withheld_pair_and_no_held_out_name():
    rng = Random(0)
    for fact in drawn("train", 1000):
        for each in (fact, *near_misses(fact, rng, "train")):
            assert not each.is_withheld
            names = {each.agent.lower(), each.patient.lower(), each.place.lower()} & MADE_UP
            assert not any(is_withheld(name) for name in names)


def test_held_out_facts_have_names_that_training_never_shows():
    for fact in drawn("held_out"):
        assert fact.agent.lower() in MADE_UP
        assert is_withheld(fact.agent.lower())


def test_every_compositional_fact_has_a_withheld_pair_of_ordinary_words():
    for fact in drawn("compositional"):
        assert fact.is_withheld
        assert fact.agent.lower() not in MADE_UP


def test_a_made_up_name_is_a_person_or_a_place():
    people, places = set(), set()
    for fact in drawn("train", 4000):
        people.add(fact.agent)
        places.add(fact.place)
    assert len(people & places) > 100


COUNT = 100  # texts a score


def test_every_head_has_a_card():
    assert {head.folder for head in HEADS} == set(CARDS)


@pytest.mark.parametrize("name", CARDS)
def test_checkpoint_is_small(name: str):
    files = [path for path in (CHECKPOINTS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 1_500_000


def test_masked_words_follow_from_the_others():
    fill = scores.filler(CHECKPOINTS / "example-bert")
    scored = scores.masked_word_accuracy(fill, "compositional", COUNT, seed=3)
    assert (
        scored
        >= scores.masked_word_accuracy(fill, "compositional", COUNT, 3, is_shuffled=True) + 0.15
    )
    assert scores.agreement_accuracy(fill, "compositional", COUNT, seed=3) >= 0.8


def test_sentiments_follow_from_the_order_of_words():
    classify = scores.classifier(CHECKPOINTS / "example-bert-sentiment")
    assert scores.sentiment_accuracy(classify, "compositional", COUNT, seed=3) >= 0.85
    assert scores.same_words_accuracy(classify, COUNT, seed=3) >= 0.85  # a bag of words: 0.5


def test_roles_follow_from_the_sentence_and_not_from_the_names():
    tag = scores.tagger(CHECKPOINTS / "example-bert-tags")
    assert scores.role_f1(tag, "held_out", COUNT, seed=3) >= 0.95
    assert scores.role_f1(tag, "held_out", COUNT, seed=3, is_swapped=True) < 0.3


def test_answers_are_ranked_above_similar_facts():
    rank = scores.ranker(CHECKPOINTS / "example-bert-rerank")
    assert scores.ranking_top1(rank, "compositional", COUNT, seed=3) >= 0.9
    assert scores.ranking_top1(rank, "compositional", COUNT, seed=3, is_swapped=True) < 0.4


def test_answers_follow_from_the_passage():
    answer = scores.answerer(CHECKPOINTS / "example-bert-answer")
    assert scores.answer_exact(answer, "held_out", COUNT, seed=3) >= 0.85
    assert scores.answer_f1(answer, "compositional", COUNT, seed=3) >= 0.85
    assert scores.answer_exact(answer, "held_out", COUNT, seed=3, is_swapped=True) < 0.2
    assert scores.no_answer_accuracy(answer, "held_out", COUNT, seed=3) >= 0.8


@pytest.mark.parametrize("split", ["train", "held_out", "compositional"])
def test_an_answer_is_whole_words_of_its_passage(split: Split):
    asked = list(islice(asked_passages(split, 3), 400))
    answered = [one for one in asked if one.answer]
    assert 0.6 < len(answered) / len(asked) < 0.9
    for one in answered:
        around = f" {one.passage} "
        assert not any(map(str.isalnum, (around[one.start], around[one.end + 1])))
        assert one.answer == one.answer.strip()


def test_training_lacks_the_withheld_forms_of_questions():
    train = {one.question.split()[0] for one in islice(asked_passages("train", 3), 400)}
    drawn_forms = list(islice(asked_passages("train", 3, has_withheld_forms=True), 400))
    assert {"Who", "What", "Where", "When"} <= train
    for one in islice(asked_passages("train", 3), 400):
        assert not re.match(r"Where (was|were) .* by ", one.question)
    for one in drawn_forms:
        assert re.match(r"(Where (was|were) .* by |.*, who )", one.question), one.question


def test_answers_that_are_right_score_one():
    def truth(questions: list[str], passages: list[str], may_be_none: bool) -> list[str]:
        known = {
            (one.question, one.passage): one.answer
            for one in islice(asked_passages("held_out", 3), 400)
        }
        return [known[pair] for pair in zip(questions, passages, strict=True)]

    assert scores.answer_exact(truth, "held_out", 50, seed=3) == 1.0
    assert scores.answer_f1(truth, "held_out", 50, seed=3) == 1.0
    assert scores.no_answer_accuracy(truth, "held_out", 50, seed=3) == 1.0


def test_paraphrases_are_nearer_than_sentences_of_the_same_words():
    embed = scores.embedder(CHECKPOINTS / "example-bert-embed")
    by_words = scores.shared_words_top1("compositional", COUNT, seed=3)
    assert scores.paraphrase_top1(embed, "compositional", COUNT, seed=3) >= by_words + 0.15


@cache
def drawn_reviews(split: Split, count: int = 300, seed: int = 3):
    return list(islice(reviews(split, seed), count))


def bag(text: str) -> list[str]:
    return sorted(re.findall("[a-z]+", text.lower()))


@pytest.mark.parametrize("split", ["train", "held_out", "compositional"])
def test_reviews_keep_to_their_split(split: Split):
    assert all(not one.pairs or split_of(one) == split for one in drawn_reviews(split))


def test_sentiments_are_balanced():
    counts = Counter(one.sentiment for one in drawn_reviews("train", 2000))
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
            for one in drawn_reviews(split, 3000, seed=5)
            if one.pairs == pairs
        }
        assert found <= {expected}
        occurs |= bool(found)
    assert occurs


def test_no_word_decides_alone():
    counts: dict[str, Counter[str]] = {}
    for one in drawn_reviews("train", 12000):
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

    assert scores.same_words_accuracy(classify, 200, seed=2) == 0.5


def test_perfect_answers_score_one():
    truth = {one.text: one.sentiment for one in drawn_reviews("held_out", 100, seed=9)}
    assert (
        scores.sentiment_accuracy(lambda texts: [truth[t] for t in texts], "held_out", 100, 9)
        == 1.0
    )
