"""Linear probes and templates: pictures are balanced and apart, probes separate classes."""

from __future__ import annotations

from collections import Counter

import numpy as np

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
