"""HTML: what is text in it, and that nothing else changes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest, PayloadTooLarge
from serving.documents.html import Html
from serving.documents.segment import Inline

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
