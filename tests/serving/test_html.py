"""HTML: what is text in it, and where markup goes in a translation."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest, PayloadTooLarge
from serving.documents.html import Html
from serving.documents.markup_transfer import links, transfer_markup, words
from serving.documents.segment import Inline
from triptych.tasks.translate import Alignment

PAGE = """<!DOCTYPE html>
<html lang=es><head><title>El mundo</title><style>p > a { color: red }</style>
<script>if (a < b && "<p>Hola</p>") { x("</p>") }</script></head>
<body class='a "b"' data-x="<p>">
  <!-- <p>un comentario</p> -->
  <h1 id="x">Mi&nbsp;hermana &amp; yo</h1>
  <p>Hay <b title="a > b">veinte</b> mesas<br>en el <i>jardín</i>.</p>
  <ul><li>uno<li>dos &lt;tres&gt;</ul> 12 <td>34</td>
  <p>Use <code>ls -l</code> y <span translate="no">Triptych</span>.</p>
  <pre>a
  b</pre><p class="notranslate">nada</p><img src=x alt="una foto"></body></html>
"""


def texts(source: str) -> list[str]:
    return [segment.text for segment in Html(source).segments]


def loud(segment: Inline) -> Inline:
    """Every text in capitals."""
    return Inline(
        segment.key,
        tuple(c.upper() if isinstance(c, str) else loud(c) for c in segment.children),
    )


def test_texts_between_blocks_are_segments() -> None:
    assert texts(PAGE) == [
        "El mundo",
        "Mi\xa0hermana & yo",
        "Hay veinte mesas",
        "en el jardín.",
        "uno",
        "dos <tres>",
        "Use  y .",
        "a\n  b",
    ]


def test_nothing_but_text_changes() -> None:
    document = Html(PAGE)
    assert document.text(document.segments) == PAGE
    shouted = document.text([loud(segment) for segment in document.segments])
    expected = PAGE
    for before, after in [
        *(("El mundo", "EL MUNDO"), ("Mi&nbsp;hermana", "MI&nbsp;HERMANA"), (" yo<", " YO<")),
        *(("Hay", "HAY"), ("veinte", "VEINTE"), ("mesas", "MESAS"), ("en el", "EN EL")),
        *(("jardín", "JARDÍN"), ("uno", "UNO"), ("dos &lt;tres&gt;", "DOS &lt;TRES&gt;")),
        *(("Use", "USE"), (" y <", " Y <"), ("a\n  b", "A\n  B")),
    ]:
        assert expected.count(before) == 1 or before == "uno"
        expected = expected.replace(before, after, 1)
    assert shouted.replace("UN comentario", "un comentario") == expected


@pytest.mark.parametrize(
    "source",
    [
        "a <b>c",
        "a </b> c",
        "<b>a<i>b</b>c</i>",
        "a < b > c",
        "<p a=\"b'>c</p>",
        "a <!-- b",
        "<![CDATA[ a ]]>b",
        "<script>a",
        "a<br/>b<BR >c",
        "<b><p>a</p></b>",
        "a &unknown; &#x41; &amp b",
        "<",
        "<>",
        "</>",
        "<code>a",
        "<?xml version='1.0'?><p>a</p>",
        "",
    ],
)
def test_odd_markup_stays_as_it_is(source: str) -> None:
    document = Html(source)
    assert Html(document.text(document.segments)).segments == document.segments
    assert sum(map(len, source.split("&"))) <= len(document.text(document.segments)) + 10


@given(st.text(alphabet="<>/bpi!-=\"' &;a\n\xa0", max_size=60))
def test_any_text_is_read_and_what_is_written_is_stable(source: str) -> None:
    document = Html(source)
    written = document.text(document.segments)
    again = Html(written)
    assert again.text(again.segments) == written
    assert [s.text for s in again.segments] == [s.text for s in document.segments]


@pytest.mark.parametrize(
    "unit", ["<", "<!--", "<a ", '<a b="', "<b>a", "&", "a<p>", "<code>", "<![CDATA[", "<a 'b'"]
)
def test_time_is_linear(unit: str) -> None:
    with contextlib.suppress(InvalidRequest, PayloadTooLarge):  # minutes, were it quadratic
        Html(unit * 100_000)


def test_too_much_markup_is_refused() -> None:
    for source in ("<b>" * 60 + "a" + "</b>" * 60, "a" + "<img>" * 600):
        with pytest.raises(InvalidRequest, match="inline elements"):
            Html(source)


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
    return document.text([transfer_markup(segment, target, links(segment.text, target, alignment))])


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
        result = transfer_markup(segment, target, weights)
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
    assert transfer_markup(segment, target, None) == transfer_markup(
        segment, target, links(segment.text, target, None)
    )


def test_links_of_very_long_paragraphs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has 6000 words, its translation 5000: divide it"):
        links("a " * 6000, "b " * 5000, None)
