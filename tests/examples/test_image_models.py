"""CLIP, ViT and LLaVA: their tasks, and what their training reads."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from transformers import LlavaProcessor

from examples.clip.shots import (
    FAMILIAR,
    FOREIGN,
    LABELS,
    Labelled,
    chosen_share,
    example_pictures,
    heldout_pictures,
    probe,
    probe_share,
)
from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE
from examples.scenes.scene import Scene, Thing, scenes
from examples.vit import scores as vit_scores
from examples.vit.card import Measured, roll_out
from examples.vit.train import OUTPUT
from examples.vqa import train as vqa_train
from examples.vqa.questions import Question, draw_questions
from examples.vqa.scores import Asked, accuracy, swapped_accuracy


def digest(pictures: Labelled) -> set[bytes]:
    return {image.tobytes() for image in pictures.images}


def test_examples_are_balanced_and_differ_by_draw() -> None:
    first, second = (example_pictures(2, draw) for draw in (0, 1))
    assert Counter(first.classes.tolist()) == dict.fromkeys(range(len(LABELS)), 2)
    assert len(digest(first) | digest(second)) == 4 * len(LABELS)
    assert not digest(heldout_pictures(60)) & (digest(first) | digest(second))


def test_probe_separates_classes_and_ignores_their_offset() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(LABELS), 24))
    classes = np.repeat(np.arange(len(LABELS)), 6)
    drawn = 5 + 0.01 * (centres[classes] + 0.2 * rng.normal(size=(len(classes), 24)))
    seen = np.arange(len(classes)) % 6 < 4
    weights, biases = probe(drawn[seen], classes[seen])
    found = (drawn[~seen] @ weights + biases).argmax(axis=1)
    assert (found == classes[~seen]).mean() > 0.95


def test_shares_count_what_is_right() -> None:
    test = heldout_pictures(40)
    truths = {
        id(image): LABELS[index] for image, index in zip(test.images, test.classes, strict=True)
    }
    assert chosen_share(lambda images, _: [truths[id(image)] for image in images], 40) == 1
    always = chosen_share(lambda images, labels: [labels[0]] * len(images), 40)
    assert always == (test.classes == 0).mean()


def test_vectors_without_information_leave_chance() -> None:
    rng = np.random.default_rng(1)
    share = probe_share(lambda images: rng.normal(size=(len(images), 16)), 1, 200)
    assert share < 0.15


def test_every_template_has_one_place() -> None:
    assert all(template.count("{}") == 1 for template in FAMILIAR + FOREIGN)


COUNT = 150  # pictures


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured(OUTPUT)


def test_checkpoint_is_small():
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= 1_500_000


def test_withheld_combinations_are_classified(measured: Measured):
    assert vit_scores.class_accuracy(measured.classify, COUNT, seed=3) >= 0.7
    assert vit_scores.class_accuracy(measured.classify, COUNT, seed=3, is_swapped=True) < 0.1


def test_attention_falls_on_the_largest_thing(measured: Measured):
    shares = vit_scores.attention_shares(measured.attend, COUNT, seed=3)
    assert shares["highest attention on the largest thing"] >= 0.8
    largest = shares["attention on the largest thing"] / shares["uniform attention on it"]
    smaller = shares["attention on the smaller thing"] / shares["uniform attention on that"]
    assert largest > 1.6
    assert largest > smaller


def test_roll_out_of_uniform_layers_is_uniform():
    layer = torch.full((1, 3, 17, 17), 1 / 17)
    assert torch.allclose(torch.from_numpy(roll_out((layer, layer))), torch.full((1, 4, 4), 1 / 16))


SMALL, LARGE = Thing("small", "red", "plain", "star"), Thing("large", "blue", "striped", "ring")


def test_class_is_colour_and_shape_of_the_largest_thing():
    assert vit_scores.class_of(Scene(SMALL, "gray", "left", LARGE)) == "blue ring"
    assert vit_scores.class_of(Scene(LARGE, "gray", "above", SMALL)) == "blue ring"
    assert vit_scores.class_of(Scene(SMALL, "white")) == "red star"


def test_two_things_of_one_size_have_no_class():
    other = Thing("small", "green", "plain", "heart")
    assert not vit_scores.is_decided(Scene(SMALL, "gray", "left", other))
    assert vit_scores.is_decided(Scene(SMALL, "gray", "left", LARGE))


def test_training_shows_every_class_but_no_withheld_combination(monkeypatch):
    monkeypatch.setattr("examples.vit.scores.render", lambda *_: None)
    scenes = [scene for scene, _ in islice(vit_scores.pictures("train", 0), 4000)]
    assert {vit_scores.class_of(scene) for scene in scenes} == set(vit_scores.CLASSES)
    assert not any(scene.is_withheld for scene in scenes)


def test_heldout_pictures_show_a_withheld_thing_at_its_place():
    for drawn in vit_scores.heldout_pictures(30, seed=1):
        assert drawn.scene.canonical().first.is_withheld
        pixels = np.asarray(drawn.image).astype(float)
        region = covered(drawn.places[0], 1)
        assert abs(pixels[region].mean(0) - pixels[~region].mean(0)).max() > 10


def test_perfect_classes_score_one_and_swapped_ones_little():
    truth = {
        one.image.tobytes(): vit_scores.class_of(one.scene)
        for one in vit_scores.heldout_pictures(40, seed=9)
    }

    def classify(images):
        return [truth[image.tobytes()] for image in images]

    assert vit_scores.class_accuracy(classify, 40, seed=9) == 1.0
    assert vit_scores.class_accuracy(classify, 40, seed=9, is_swapped=True) < 0.2


def test_uniform_attention_has_the_share_of_the_area():
    side = SIDE // 8
    uniform = [np.full((side, side), 1 / side**2) for _ in range(40)]
    shares = vit_scores.attention_shares(lambda images: uniform, 40, seed=9)
    assert np.isclose(shares["attention on the largest thing"], shares["uniform attention on it"])
    assert np.isclose(shares["attention on the smaller thing"], shares["uniform attention on that"])


def test_attention_on_the_thing_alone_has_all_the_share():
    maps = [
        covered(one.places[0], 8) / covered(one.places[0], 8).sum()
        for one in vit_scores.heldout_pictures(40, seed=9)
    ]
    shares = vit_scores.attention_shares(lambda images: maps, 40, seed=9)
    assert np.isclose(shares["attention on the largest thing"], 1.0)
    assert shares["highest attention on the largest thing"] == 1.0


RING = Thing("large", "red", "striped", "ring")
STAR = Thing("small", "blue", "plain", "star")
BESIDE = Scene(RING, "gray", "left", STAR)
ABOVE = Scene(RING, "gray", "below", Thing("large", "red", "dotted", "ring"))
ALONE = Scene(STAR, "white")


def drawn(scene: Scene, count: int = 600) -> dict[str, str]:
    """Texts of questions, in one spelling, with their answers."""
    found: dict[str, str] = {}
    for question in islice(draw_questions(scene, np.random.default_rng(1)), count):
        text = question.text.lower().replace("color ", "colour ")
        assert found.setdefault(text, question.answer) == question.answer
    return found


def test_answers_are_those_of_the_scene() -> None:
    expected = {
        "how many shapes are there?": "two",
        "what colour is the background?": "gray",
        "what colour is the left shape?": "red",
        "which shape is the right thing?": "star",
        "which shape is the blue thing?": "star",
        "which texture has the ring?": "striped",
        "is the right shape small or large?": "small",
        "is there a red ring?": "yes",
        "is there a blue ring?": "no",
        "is the ring to the left of the star?": "yes",
        "is the ring to the right of the star?": "no",
        "where is the star?": "to the right of the ring",
        "what do you see?": "a large red striped ring to the left of a small blue star on a gray "
        "background",
    }
    assert expected.items() <= drawn(BESIDE).items()


def test_a_pair_that_shares_an_attribute_is_told_apart_by_another() -> None:
    asked = drawn(ABOVE)
    assert asked["which texture has the upper shape?"] == "dotted"
    assert asked["which texture has the lower shape?"] == "striped"
    for words in ("the ring", "the red", "the large"):
        assert not any(words in text and "is there" not in text for text in asked), words


def test_one_thing_has_no_place() -> None:
    asked = drawn(ALONE)
    assert asked["what colour is the shape?"] == "blue"
    assert asked["which shape is the thing?"] == "star"
    assert not any(text.startswith("where") or "upper" in text for text in asked)


def test_spellings_vary() -> None:
    asked = list(islice(draw_questions(BESIDE, np.random.default_rng(2)), 300))
    texts = {question.text for question in asked}
    assert {"What color is the background?", "what colour is the background?"} <= texts
    assert "Describe this image." in texts
    assert all(question.answer == question.answer.lower() for question in asked)


def test_half_of_the_answers_are_yes() -> None:
    rng = np.random.default_rng(3)
    answers = Counter(
        question.answer
        for scene in scenes("heldout", 300, 5)
        for question in islice(draw_questions(scene, rng), 8)
        if question.kind in ("presence", "relation")
    )
    assert set(answers) == {"yes", "no"}
    assert answers["yes"] / answers.total() == pytest.approx(0.5, abs=0.08)


def test_scores_of_answers_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: Asked = []
    for scene in scenes("heldout", 60, 4):
        (question,) = islice(draw_questions(scene, np.random.default_rng(len(pairs))), 1)
        pairs.append((np.zeros((1, 1)), question))
    monkeypatch.setattr("examples.vqa.scores._asked", lambda count, seed: pairs)
    known = {id(picture): question.answer for picture, question in pairs}

    def answer_all(asked: list[tuple[object, str]]) -> list[str]:
        return [known[id(picture)] for picture, _ in asked]

    shares = accuracy(answer_all, 60, 4)
    assert set(shares.values()) == {1.0}
    assert set(shares) == {"all", *(question.kind for _, question in pairs)}
    assert swapped_accuracy(answer_all, 60, 4) < 0.5


def test_kinds_are_scored_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [
        (None, Question("count", "how many?", "two")),
        (None, Question("place", "where?", "a")),
    ]
    monkeypatch.setattr("examples.vqa.scores._asked", lambda count, seed: pairs)
    shares = accuracy(lambda asked: ["two"] * len(asked), 2, 1)
    assert shares == {"all": 0.5, "count": 1.0, "place": 0.0}


IGNORED = -100


def test_rows_are_the_templates_conversations_and_answers_are_learnt() -> None:
    processor = LlavaProcessor.from_pretrained(vqa_train.OUTPUT)
    asked = [
        Question("count", "how many shapes are there?", "two"),
        Question("place", "where is the ring?", "above the star"),
    ]
    messages = []
    for place, question in enumerate(asked):
        image = [] if place else [{"type": "image"}]
        content = [*image, {"type": "text", "text": question.text}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": question.answer})
    laid_out = processor.apply_chat_template(messages).replace("<image>", "<image>" * 64)
    tokens, labels = vqa_train.row_of(asked, processor)
    assert tokens == processor.tokenizer(laid_out)["input_ids"]
    learnt = [token for token, label in zip(tokens, labels, strict=True) if label != IGNORED]
    assert learnt == [label for label in labels if label != IGNORED]
    assert processor.tokenizer.decode(learnt) == "two<|im_end|>above the star<|im_end|>"


@pytest.mark.parametrize("limit", [5_000_000])
def test_checkpoint_for_questions_is_small(limit: int) -> None:
    assert sum(path.stat().st_size for path in vqa_train.OUTPUT.iterdir()) <= limit
