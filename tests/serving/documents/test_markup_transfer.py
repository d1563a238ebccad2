"""Where markup goes in a translation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from serving.documents.html import Html
from serving.documents.markup_transfer import placed
from serving.documents.word_links import links, words
from triptych.tasks.translate import Alignment

B = ("<b>", "</b>")


def translated(source: str, target: str, pairs: str | None = None) -> str:
    """HTML with its only segment translated; `pairs` are links by position, e.g. `0-1 1-0`."""
    document = Html(source)
    (segment,) = document.segments
    alignment = None
    if pairs is not None:
        rows = [target[a:b] for a, b in words(target)]
        columns = [segment.text[a:b] for a, b in words(segment.text)]
        weights = np.zeros((len(rows), len(columns)))
        for pair in pairs.split():
            column, _, row = pair.partition("-")
            weights[int(row), int(column)] = 1
        alignment = Alignment(source_tokens=columns, target_tokens=rows, weights=weights.tolist())
    return document.text([placed(segment, target, links(segment.text, target, alignment))])


@pytest.mark.parametrize(
    ("source", "target", "pairs", "expected"),
    [
        ("la <b>casa</b> roja", "the red chair", "0-0 1-2 2-1", "the red <b>chair</b>"),
        ("la <b>casa roja</b>.", "the red chair.", "0-0 1-2 2-1 3-3", "the <b>red chair</b>."),
        (
            "<i>la <b>casa</b> roja</i> grande",
            "the big red chair",
            "0-0 1-3 2-2 3-1",
            "<i>the big red <b>chair</b></i>",
        ),
        (
            "<b>Ana</b> <i>canta</i>",
            "today Ana sings",
            "0-1 1-2",
            "<b>today Ana</b> <i>sings</i>",
        ),
        ("el <b>perro</b>", "the dog dog", "0-0 1-1 1-2", "the <b>dog dog</b>"),
        ("mira <img src=x> la casa", "look at the chair", None, "look <img src=x> at the chair"),
        ("<img>la casa", "the chair", None, "<img>the chair"),
        ("la casa<img>", "the chair", None, "the chair<img>"),
        ("la casa<b></b> roja", "the red chair", "0-0 1-2 2-1", "the red chair<b></b>"),
        ("<b>la</b> <i>casa</i> <u>roja</u>", "chair", "1-0", None),
        ("<b>la casa</b>", "", None, "<b></b>"),
        ("<a href=x>la casa</a>", "the chair", None, "<a href=x>the chair</a>"),
    ],
)
def test_markup_follows_the_words(
    source: str, target: str, pairs: str | None, expected: str | None
) -> None:
    found = translated(source, target, pairs)
    if expected is None:
        assert found.count("chair") == 1
        assert sorted(found) == sorted(
            source.replace("la", "").replace("casa", "chair").replace("roja", "").replace(" ", "")
        )
    else:
        assert found == expected


@given(
    source=st.text(alphabet="ab <>/i.", max_size=30),
    target=st.text(alphabet="xy .", max_size=20),
    seed=st.integers(0, 5),
)
def test_every_tag_and_every_word_stays(source: str, target: str, seed: int) -> None:
    document = Html(source.replace("<", "<b>").replace("/", "</b>"))
    for segment in document.segments:
        shape = (len(words(target)), len(words(segment.text)))
        weights = np.random.default_rng(seed).random(shape)
        result = placed(segment, target, weights)
        # An element of spaces keeps them, also where it comes to be before a full stop.
        assert "".join(result.text.split()) == "".join(target.split())
        assert sorted(keys(result)) == sorted(keys(segment))


def keys(element: object) -> list[object]:
    children = getattr(element, "children", ())
    own = [child.key for child in children if not isinstance(child, str)]
    return own + [key for child in children if not isinstance(child, str) for key in keys(child)]


def test_tokens_are_found_in_their_words() -> None:
    alignment = Alignment(
        source_tokens=[" La", " ca", "sa", ".", "</s>"],
        target_tokens=[" The", " cha", "ir", ".", "</s>"],
        weights=np.eye(5).tolist(),
    )
    found = links("La casa.", "The chair.", alignment)
    assert found.shape == (3, 3)
    assert (found.argmax(axis=1) == [0, 1, 2]).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("uno dos", "one two"),
        ("<b>uno dos</b>", "one two."),
        (" <i> <b>uno</b> </i> ", "  one!  "),
        ("<b>uno</b>", ""),
        ("<b>uno</b>", " "),
    ],
)
def test_plain_markup_is_placed_without_links(source: str, target: str) -> None:
    (segment,) = Html(source).segments
    assert segment.is_plain
    assert placed(segment, target, None) == placed(
        segment, target, links(segment.text, target, None)
    )


def test_links_of_very_long_paragraphs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 6000 words, its translation 5000: divide it"):
        links("a " * 6000, "b " * 5000, None)
