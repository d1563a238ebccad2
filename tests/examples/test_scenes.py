"""The scene world and its attention score."""

from __future__ import annotations

import sys
from hashlib import sha256
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from examples.clip.contrast import UNSAID, Description, families, matches, slots
from examples.scenes.patch_labels import NAMELESS, VOCABULARIES, covered, labelled_images
from examples.scenes.rendering import SIDE, Placement, placements, render
from examples.scenes.scene import (
    BACKGROUNDS,
    COLOURS,
    OUTLINES,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURE_NAMES,
    Detail,
    Scene,
    Thing,
    caption,
    is_withheld_pair,
    label,
    neighbours,
    scenes,
)
from examples.scenes.scores import (
    CHOICES,
    TokenMap,
    attention_scores,
    caption_exact_match,
    caption_words_right,
    heldout_pictures,
    picture_seed,
    questions,
    swapped_caption_match,
    swapped_zero_shot_top1,
    zero_shot_top1,
)
from tests.programs import run_program, run_with_other_hashes

LARGE_CIRCLE = Thing("large", "red", "striped", "circle")
SMALL_SQUARE = Thing("small", "blue", "plain", "square")


def fingerprint() -> str:
    """A hash over scenes and pictures of both splits."""
    digest = sha256()
    for split in ("train", "heldout"):
        for index, scene in enumerate(scenes(split, 20, seed=3)):
            digest.update(caption(scene).encode())
            digest.update(render(scene, index).tobytes())
    return digest.hexdigest()


def test_every_process_draws_the_same_scenes_and_pictures():
    program = f"from {__name__} import fingerprint; print(fingerprint())"
    assert run_with_other_hashes(program) == [fingerprint()]


def test_another_seed_draws_other_scenes():
    assert list(scenes("train", 5, seed=0)) != list(scenes("train", 5, seed=1))


def test_training_has_no_withheld_combination():
    for scene in scenes("train", 3000, seed=11):
        assert not any(thing.is_withheld for thing in scene.things)
        assert len(scene.things) == 1 or not is_withheld_pair(*scene.things)


def test_every_heldout_scene_has_a_withheld_combination():
    for scene in scenes("heldout", 1000, seed=11):
        has_withheld_thing = any(thing.is_withheld for thing in scene.things)
        assert has_withheld_thing or is_withheld_pair(*scene.things)


def test_families_keep_to_the_training_split():
    for family in families(200, members=6, seed=5):
        assert not any(description.scene.is_withheld for description in family)


def test_labelled_images_keep_to_the_training_split(monkeypatch: pytest.MonkeyPatch):
    shown = []
    monkeypatch.setattr(
        "examples.scenes.patch_labels.draw", lambda things, *_: shown.append(things)
    )
    list(islice(labelled_images(seed=5, patch=8), 100))
    for things in shown:
        assert not any(thing.is_withheld for thing in things)
        assert not any(
            is_withheld_pair(first, second)
            for index, first in enumerate(things)
            for second in things[:index]
        )


def test_about_a_sixth_of_all_things_is_withheld():
    withheld = [
        Thing("small", colour, texture, shape).is_withheld
        for colour in COLOURS
        for texture in TEXTURE_NAMES
        for shape in SHAPES
    ]
    assert 0.12 < sum(withheld) / len(withheld) < 0.22


def test_every_pair_of_two_attributes_is_learnable():
    seen = set()
    for scene in scenes("train", 5000, seed=0):
        for thing in scene.things:
            seen |= {
                (thing.colour, thing.shape),
                (thing.colour, thing.texture),
                (thing.texture, thing.shape),
            }
    expected = len(COLOURS) * len(SHAPES) + len(TEXTURE_NAMES) * (len(COLOURS) + len(SHAPES))
    assert len(seen) == expected


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (
            Scene(LARGE_CIRCLE, "green", "left", SMALL_SQUARE),
            "a large red striped circle to the left of a small blue square on a green background",
        ),
        (
            Scene(SMALL_SQUARE, "gray", "above", LARGE_CIRCLE),
            "a large red striped circle below a small blue square on a gray background",
        ),
        (
            Scene(SMALL_SQUARE, "cyan", "right", Thing("small", "orange", "dotted", "star")),
            "a small orange dotted star to the left of a small blue square on a cyan background",
        ),
        (Scene(SMALL_SQUARE, "white"), "a small blue square on a white background"),
    ],
)
def test_caption_of_a_known_scene(scene: Scene, words: str):
    assert caption(scene) == words


def test_caption_is_the_same_from_either_thing():
    for scene in scenes("train", 200, seed=2):
        assert caption(scene.seen_from_second()) == caption(scene)


def test_different_scenes_have_different_captions():
    drawn = set(scenes("train", 2000, seed=4))
    assert len({caption(scene) for scene in drawn}) == len(drawn)


def test_label_omits_words_outside_its_detail():
    scene = Scene(LARGE_CIRCLE, "green", "left", Thing("small", "orange", "plain", "star"))
    short = Detail(has_sizes=False, has_background=False)
    assert label(scene, short) == "red striped circle to the left of an orange star"


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_painted_where_it_is_placed(shape: str):
    scene = Scene(Thing("large", "red", "plain", shape), "white")
    pixels = np.asarray(render(scene, seed=1)).astype(float)
    (place,) = placements(scene, seed=1)
    is_red = pixels[..., 0] - pixels[..., 1] > 90
    rows, columns = np.nonzero(is_red)
    assert is_red.any()
    assert np.hypot(columns + 0.5 - place.x, rows + 0.5 - place.y).max() < 1.45 * place.radius
    x = (np.arange(SIDE) + 0.5 - place.x) / place.radius
    x, y = np.meshgrid(x, -(np.arange(SIDE) + 0.5 - place.y) / place.radius)
    assert (OUTLINES[shape](x, y) == is_red).mean() > 0.97


@pytest.mark.parametrize("relation", RELATIONS)
def test_things_stand_in_their_relation_without_touching(relation: str):
    scene = Scene(LARGE_CIRCLE, "white", relation, SMALL_SQUARE)
    for seed in range(200):
        first, second = placements(scene, seed)
        across, down = second.x - first.x, second.y - first.y
        ahead = {"left": across, "right": -across, "above": down, "below": -down}[relation]
        assert ahead >= first.radius + second.radius
        aside = abs(down if relation in ("left", "right") else across)
        assert aside < ahead


def test_things_stay_inside_the_picture():
    for seed, scene in enumerate(scenes("train", 300, seed=6)):
        for place in placements(scene, seed):
            for centre in (place.x, place.y):
                assert place.radius <= centre <= SIDE - place.radius


def test_texture_has_two_tones_and_plain_has_one():
    spread = {}
    for texture in TEXTURE_NAMES:
        scene = Scene(Thing("large", "yellow", texture, "square"), "white")
        (place,) = placements(scene, seed=0)
        x, y, half = int(place.x), int(place.y), int(place.radius / 2)
        pixels = np.asarray(render(scene, seed=0))[y - half : y + half, x - half : x + half]
        spread[texture] = pixels.astype(float).std((0, 1)).max()
    assert all(spread[texture] > 4 * spread["plain"] for texture in TEXTURE_NAMES[1:])


def test_neighbours_differ_in_exactly_one_attribute():
    scene = Scene(LARGE_CIRCLE, "green", "left", SMALL_SQUARE)
    attributes = [
        (
            other.background,
            other.relation,
            *vars(other.first).values(),
            *vars(other.second).values(),
        )
        for other in [scene, *neighbours(scene)]
    ]
    truth = attributes[0]
    differences = [
        sum(a != b for a, b in zip(truth, other, strict=True)) for other in attributes[1:]
    ]
    assert set(differences) == {1}
    # Each thing: another size, 6 colours that are not the background's, 3 textures, 8 shapes;
    # then 3 relations, and 5 other backgrounds less the blue one that would hide the square.
    assert len(differences) == len(set(attributes[1:])) == 2 * (1 + 6 + 3 + 8) + 3 + 4


def test_matches_accepts_a_shorter_true_label():
    small = Scene(Thing("small", "red", "plain", "star"), "gray")
    large = Scene(Thing("large", "red", "plain", "star"), "gray")
    described = [
        Description(small, Detail()),
        Description(large, Detail()),
        Description(large, Detail(has_sizes=False)),
    ]
    expected = [[True, False, True], [False, True, True], [False, True, True]]
    assert matches(described).tolist() == expected


def test_matches_accepts_a_description_from_the_other_thing():
    scene = Scene(LARGE_CIRCLE, "green", "left", SMALL_SQUARE)
    turned = Scene(LARGE_CIRCLE, "green", "right", SMALL_SQUARE)
    views = [scene, scene.seen_from_second(), turned]
    is_true = matches([Description(view, Detail()) for view in views])
    assert is_true.tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_slots_follow_positions_and_not_the_order_of_names():
    scene = Scene(LARGE_CIRCLE, "green", "below", SMALL_SQUARE)
    expected = [
        *(SIZES.index("small"), COLOURS.index("blue"), TEXTURE_NAMES.index("plain")),
        *(SHAPES.index("square"), 1 + RELATIONS.index("above")),
        *(SIZES.index("large"), COLOURS.index("red"), TEXTURE_NAMES.index("striped")),
        *(SHAPES.index("circle"), BACKGROUNDS.index("green")),
    ]
    assert slots(Description(scene, Detail())) == expected
    assert slots(Description(scene.seen_from_second(), Detail())) == expected


def test_slots_mark_words_that_a_label_omits():
    alone = Description(Scene(LARGE_CIRCLE, "green"), Detail(has_sizes=False))
    coded = [index for index, code in enumerate(slots(alone)) if code != UNSAID]
    assert coded == [1, 2, 3, 4, 9]  # colour, texture, shape, that it is alone, background


def test_family_differs_in_positions():
    for family in families(100, members=6, seed=8, moved=2):
        scene = family[0].scene
        if scene.second is None:
            continue
        things = {frozenset(one.scene.things) for one in family}
        placed = [slots(Description(one.scene, Detail())) for one in family]
        moved = [one for one in family[1:] if {*one.scene.things} == {*scene.things}]
        same_background = [one for one in moved if one.scene.background == scene.background]
        assert len(same_background) >= 2
        assert len({tuple(place) for place in placed}) == len(family)
        assert len(things) <= len(family) - 2


def test_gray_labelled_images_have_no_colour_and_no_colour_labels():
    for picture, classes in islice(labelled_images(seed=1, patch=8, gray_share=1.0), 5):
        pixels = np.asarray(picture).astype(int)
        assert (np.ptp(pixels, axis=-1) == 0).all()
        assert (classes[:, VOCABULARIES.index(COLOURS)] == NAMELESS).all()
        assert (classes[:, VOCABULARIES.index(SHAPES)] != NAMELESS).any()


def test_label_names_the_thing_under_a_patch():
    picture, classes = next(labelled_images(seed=0, patch=8))
    assert classes.shape == ((SIDE // 8) ** 2, len(VOCABULARIES))
    named = classes[classes[:, 0] != NAMELESS]
    assert len(named) > 10
    assert (named >= 0).all()
    assert (named < [len(names) for names in VOCABULARIES]).all()
    assert picture.size == (SIDE, SIDE)


def test_questions_offer_one_truth_among_distinct_labels():
    for question in questions(60, seed=1):
        assert len(set(question.labels)) == len(question.labels) == CHOICES >= 20
        assert question.truth in question.labels


def test_perfect_captions_score_one_and_swapped_ones_nothing():
    truths = [caption(scene) for scene, _ in heldout_pictures(50, seed=9)]
    assert caption_exact_match(lambda pictures: truths, 50, seed=9) == 1.0
    assert swapped_caption_match(lambda pictures: truths, 50, seed=9) < 0.05


def test_words_in_their_places_count():
    truths = [caption(scene) for scene, _ in heldout_pictures(50, seed=9)]
    words = sum(len(truth.split()) for truth in truths)
    assert caption_words_right(lambda pictures: truths, 50, seed=9) == 1.0
    assert caption_words_right(lambda pictures: [""] * 50, 50, seed=9) == 0.0
    longer = [f"{truth} again" for truth in truths]
    assert caption_words_right(lambda pictures: longer, 50, seed=9) == 1.0
    first = [truth.split()[0] for truth in truths]
    assert caption_words_right(lambda pictures: first, 50, seed=9) == 50 / words


def test_zero_shot_score_counts_true_choices():
    asked = {question.picture.tobytes(): question.truth for question in questions(40, seed=9)}
    assert zero_shot_top1(lambda picture, labels: asked[picture.tobytes()], 40, seed=9) == 1.0
    assert swapped_zero_shot_top1(lambda picture, labels: asked[picture.tobytes()], 40, 9) == 0.0
    assert zero_shot_top1(lambda picture, labels: labels[0], 400, seed=9) < 3 / CHOICES


def test_scoring_needs_no_torch():
    command = "import sys, examples.scenes.scores; print(*sys.modules)"
    loaded = run_program(sys.executable, "-c", command).split()
    assert "examples.scenes.scores" in loaded
    assert not {"torch", "transformers"} & {*loaded}


COUNT, SEED = 12, 3
BEST, MASS, BLIND, OTHER = range(4)


def observer(is_on_named: bool):
    """Returns true captions with attention on each word's thing, or on the other one."""

    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        scenes = [scene for scene, _ in heldout_pictures(COUNT, SEED)]
        assert len(pictures) == len(scenes)
        return [tokens(index, scene) for index, scene in enumerate(scenes)]

    def tokens(index, scene):
        regions = [covered(at, 8) for at in placements(scene, picture_seed(COUNT, SEED, index))]
        maps = [region / region.sum() for region in regions]
        thing, maps_of_words = 0, []
        for word in caption(scene).split():
            at = min(thing, len(maps) - 1)
            maps_of_words.append(TokenMap(f" {word}", maps[at if is_on_named else -1 - at]))
            thing += thing < len(scene.things) and word == scene.things[thing].shape
        return maps_of_words

    return observe


def test_attention_on_the_named_thing_scores_one():
    scores = list(attention_scores(observer(True), COUNT, SEED).values())
    assert scores[BEST] == 1
    assert scores[MASS] == pytest.approx(1)
    assert scores[OTHER] < 0.1  # cells that the two share
    assert 0.02 < scores[BLIND] < 0.3


def test_attention_on_the_other_thing_scores_less():
    scores = list(attention_scores(observer(False), COUNT, SEED).values())
    assert scores[OTHER] == pytest.approx(1)
    assert scores[MASS] < 0.6  # only where there is no other thing


def test_wrong_words_do_not_count():
    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        captions = observer(True)(pictures)
        elsewhere = np.zeros((8, 8))
        return [
            [TokenMap(" rainbow", elsewhere) if g.word.strip() in COLOURS else g for g in tokens]
            for tokens in captions
        ]

    assert list(attention_scores(observe, COUNT, SEED).values())[MASS] == pytest.approx(1)


def test_thing_covers_the_patches_whose_centres_it_contains():
    cells = covered(Placement(x=12, y=36, radius=8), patch=8)
    assert cells[4, 1]  # its own centre
    assert [int(count) for count in cells.sum(axis=1)] == [0, 0, 0, 1, 3, 1, 0, 0]
