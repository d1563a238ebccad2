"""Data and committed folders of the recurrent systems.

names.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.local_model import torch_graphs
from examples import HISTORY_CHECKPOINTS
from examples.bert.scores import same_words_accuracy, sentiment_accuracy
from examples.en_fr.train import batches
from examples.history.gazette.networks import CONFIGS, network, parameters
from examples.history.gazette.train import FOLDERS, WORDS
from examples.history.recurrent.card import CARDS
from examples.history.recurrent.everyday_sentences import (
    LANGUAGES,
    everyday_sentences,
    typed,
    unrelated_sentences,
)
from examples.history.recurrent.networks import plain_words
from examples.history.recurrent.parts_of_speech import (
    FAMOUS,
    FAMOUS_TAGS,
    TaggedSentence,
    split_of,
    tagged_sentences,
)
from examples.history.recurrent.review_templates import FAMOUS as FAMOUS_REVIEWS
from examples.history.recurrent.review_templates import FAMOUS as REVIEW_TEMPLATES_FAMOUS
from examples.history.recurrent.review_templates import template_reviews
from examples.history.recurrent.scores import (
    ambiguous_accuracy,
    bits_per_character,
    language_accuracy,
    language_sentences,
    most_frequent_tags,
    scorer,
    tag_f1,
    template_accuracy,
    text_classifier,
    unknown_accuracy,
    word_tagger,
)
from examples.history.recurrent.tagged_phrases import TAGS
from examples.history.recurrent.train import EXAMPLES
from examples.texts.grammar import Split
from export.tokenizer.languages import THREE_LETTERS
from export.training.bahdanau import Batch, save, write_settings
from inference.bundle.manifest import Role
from tests.export.step_calls import teacher_forced

COUNT = 300


def test_labels_are_iso_639_codes() -> None:
    assert set(LANGUAGES) <= set(THREE_LETTERS)
    assert len(LANGUAGES) == 6


@pytest.mark.parametrize("split", ["train", "held_out", "compositional"])
def test_languages_are_drawn_alike_and_every_slot_is_filled(split: Split) -> None:
    drawn = list(islice(everyday_sentences(split, 2), COUNT))
    assert set(Counter(one.language for one in drawn).values()) == {COUNT // 6}
    assert not any(set("{};*") & set(one.text) for one in drawn)
    assert drawn == list(islice(everyday_sentences(split, 2), COUNT))


def test_splits_share_no_sentence() -> None:
    train = {one.text.lower() for one in islice(everyday_sentences("train", 2), 5 * COUNT)}
    for split in ("held_out", "compositional"):
        assert not train & {one.text.lower() for one in islice(everyday_sentences(split), COUNT)}


def test_unrelated_sentences_are_ten_of_each_language() -> None:
    asked = unrelated_sentences()
    assert set(Counter(one.language for one in asked).values()) == {10}


def test_typing_changes_case_marks_and_accents_only() -> None:
    rng = Random(1)
    found = {typed("¿Dónde está el café?", rng) for _ in range(400)}
    assert {"¿Dónde está el café?", "¿dónde está el café?", "Dónde está el café"} <= found
    assert "¿Donde esta el cafe?" in found


FUNCTIONS_COUNT = 100  # texts a score


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
    assert tag_f1(tag, "compositional", FUNCTIONS_COUNT, seed=3) >= 0.97
    control = ambiguous_accuracy(most_frequent_tags, "compositional", FUNCTIONS_COUNT, seed=3)
    assert ambiguous_accuracy(tag, "compositional", FUNCTIONS_COUNT, seed=3) >= control + 0.1
    assert unknown_accuracy(tag, "held_out", FUNCTIONS_COUNT, seed=3) >= 0.75


def test_sentiments_follow_from_the_order_of_words() -> None:
    classify = text_classifier(HISTORY_CHECKPOINTS / "history-rnn-sentiment")
    assert classify(list(FAMOUS_REVIEWS)) == list(FAMOUS_REVIEWS.values())
    assert sentiment_accuracy(classify, "compositional", FUNCTIONS_COUNT, seed=3) >= 0.8
    assert same_words_accuracy(classify, FUNCTIONS_COUNT, seed=3) >= 0.7  # a bag of words: 0.5
    assert template_accuracy(classify, "templates", FUNCTIONS_COUNT, seed=3) >= 0.75


def test_languages_are_told_apart_by_their_characters() -> None:
    classify = text_classifier(HISTORY_CHECKPOINTS / "history-rnn-languages")
    asked = language_sentences("compositional", FUNCTIONS_COUNT, seed=3)
    assert {one.language for one in asked} == set(LANGUAGES)
    assert language_accuracy(classify, asked) >= 0.95
    assert language_accuracy(classify, unrelated_sentences()) >= 0.85
    assert language_accuracy(classify, asked, prefix=10) >= 0.75


@pytest.mark.parametrize(("name", "most"), [("chars", 1.7), ("words", 1.3)])
def test_language_models_expect_english(name: str, most: float) -> None:
    """In bits a character; an even choice of 27 characters takes 4.8."""
    score = scorer(HISTORY_CHECKPOINTS / f"history-rnn-lm-{name}")
    assert bits_per_character(score, "held_out", FUNCTIONS_COUNT, seed=3) <= most
    (sense,), (nonsense,) = score(["The old man sleeps."]), score(["sleeps The. man old"])
    assert sense > nonsense


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


REVIEW_TEMPLATES_COUNT = 3000


def test_splits_share_no_review() -> None:
    train = {
        review.text.strip(".")
        for review in islice(template_reviews("train"), REVIEW_TEMPLATES_COUNT)
    }
    for split in ("compositional", "templates"):
        assert not train & {
            one.text.strip(".") for one in islice(template_reviews(split), REVIEW_TEMPLATES_COUNT)
        }


def test_famous_reviews_are_in_no_training_text() -> None:
    train = {
        review.text.strip(".").lower()
        for review in islice(template_reviews("train"), REVIEW_TEMPLATES_COUNT)
    }
    assert not train & set(REVIEW_TEMPLATES_FAMOUS)


def test_words_of_held_out_templates_are_trained_in_others() -> None:
    def words(split: str) -> set[str]:
        return {
            word
            for one in islice(template_reviews(split), REVIEW_TEMPLATES_COUNT)
            for word in one.text.lower().strip(".").replace(",", "").split()
        }

    assert words("templates") - words("train") == set()


def test_both_sentiments_are_as_frequent() -> None:
    drawn = [one.sentiment for one in islice(template_reviews("train"), REVIEW_TEMPLATES_COUNT)]
    assert 0.45 < drawn.count("positive") / REVIEW_TEMPLATES_COUNT < 0.55
    assert set(drawn) == {"positive", "negative"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WORDS))


@pytest.fixture(scope="module")
def batch(tokenizer: Tokenizer) -> Batch:
    whole = next(batches(tokenizer, seed=3))
    return Batch(whole.source[:4], whole.lengths[:4], whole.target[:4])


def test_every_system_has_a_folder_and_about_the_same_number_of_parameters() -> None:
    assert set(FOLDERS) == set(CONFIGS)
    sizes = {"vocab_size": 1659, "max_positions": 64}
    counts = [parameters(network({**config, **sizes})) for config in CONFIGS.values()]
    assert max(counts) < 1.06 * min(counts)
    assert max(counts) * 2 < 1_000_000  # bytes, in half precision


@pytest.mark.parametrize("system", CONFIGS)
def test_saved_network_is_read_with_the_same_logits(
    system: str, tmp_path: Path, tokenizer: Tokenizer, batch: Batch
) -> None:
    torch.manual_seed(0)
    write_settings(tmp_path, tokenizer, CONFIGS[system])
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    model = network(config).half().float().eval()
    save(model, tmp_path)
    target = batch.target.clamp(min=0)
    shifted = torch.nn.functional.pad(target[:, :-1], (1, 0), value=2)
    with torch.no_grad():
        wanted = model(Batch(batch.source, batch.lengths, batch.target), 0.0)
        given, _ = teacher_forced(
            torch_graphs(tmp_path),
            {Role.SOURCE_TOKENS: batch.source, Role.SOURCE: batch.lengths},
            shifted,
        )
    seen = batch.target >= 0
    assert (wanted - given)[seen].abs().max() < 1e-4 * wanted.abs().max()
