"""The committed GPT-2 is small, learns in context, and continues text of the example world."""

from itertools import islice

import pytest
from transformers import GPT2Tokenizer

from examples.gpt.continuation import answerer, continuer
from examples.gpt.episodes import FRESH, KNOWN, lessons, questions
from examples.gpt.scores import accuracy, mean, swapped_accuracy
from examples.gpt.train import OUTPUT

COUNT = 25  # questions a family


@pytest.fixture(scope="module")
def answer_all():
    return answerer(OUTPUT)


@pytest.fixture(scope="module")
def tokenizer():
    return GPT2Tokenizer.from_pretrained(OUTPUT)


def test_checkpoint_is_small():
    assert (OUTPUT / "model.safetensors").stat().st_size <= 4_000_000


def test_answers_need_the_examples_of_the_prompt(answer_all):
    shares = {
        shots: mean([accuracy(answer_all, family, shots, COUNT, seed=3) for family in FRESH])
        for shots in (0, 4, 8)
    }
    assert shares[4] >= shares[0] + 0.6
    assert shares[8] >= 0.85


def test_answers_come_from_the_examples_and_not_from_the_words(answer_all):
    shares = [swapped_accuracy(answer_all, family, 4, COUNT, seed=3) for family in FRESH]
    assert mean(shares) < 0.2


def test_trained_facts_are_answered_after_a_few_examples(answer_all):
    assert mean([accuracy(answer_all, family, 4, COUNT, seed=3) for family in KNOWN]) >= 0.7


def test_an_empty_prompt_is_continued():
    complete = continuer(OUTPUT)
    assert len(complete("").split()) >= 3
    assert complete("We are").startswith(" ")  # continues with another word


def test_pieces_of_lessons_tokenise_alone_as_they_do_together(tokenizer):
    for lesson in islice(lessons(5), 60):
        pieces = list(lesson.pieces())
        alone = [token for ids in tokenizer(pieces)["input_ids"] for token in ids]
        assert alone == tokenizer("".join(pieces))["input_ids"]


def test_prompts_of_one_header_share_its_tokens(tokenizer):
    for family in FRESH:
        for question in questions(family, 4, 10, seed=1):
            header, newline, _ = question.text.rpartition("\n")
            shared = tokenizer(header + newline)["input_ids"]
            assert tokenizer(question.text)["input_ids"][: len(shared)] == shared


def test_made_up_words_are_few_tokens(tokenizer):
    (family,) = (family for family in FRESH if family.name == "code words")
    asked = list(questions(family, 0, 200, seed=1))
    for words in ([one.prompt for one in asked], [f" {one.answer}" for one in asked]):
        counts = [len(ids) for ids in tokenizer(words)["input_ids"]]
        assert max(counts) <= 4
        assert sum(counts) / len(counts) < 2.6
