"""Files and HTML: their texts are translated, everything else stays, and odd ones are refused."""

from __future__ import annotations

import contextlib
import io
import zipfile

import docx
import numpy as np
import pptx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odf import opendocument, text

from inference.errors import InvalidRequest, PayloadTooLarge
from serving.documents.archive import Archive
from serving.documents.formats import read
from serving.documents.html import Html
from serving.documents.markup_transfer import links, transfer_markup, words
from serving.documents.segment import Document, Inline
from tests.serving import document_samples as samples
from triptych.tasks.translate import Alignment


def shouted(document: Document) -> bytes:
    """The document with every text in capitals, its markup placed by the order of words."""
    done = [
        transfer_markup(one, one.text.upper(), links(one.text, one.text.upper(), None))
        for one in document.segments
    ]
    return document.write(done)


def upper(texts: list[str]) -> list[str]:
    return [one.upper() for one in texts]


def test_word_file_keeps_its_layout() -> None:
    source = samples.word_file()
    document = read("a.DOCX", source)
    found = [segment.text for segment in document.segments]
    assert sorted(found) == sorted(
        "un título|hay veinte mesas.|en el jardín|nombre|ana|fin|uno|celda|cabecera|pie".split("|")
    )
    result = shouted(document)
    assert samples.word_texts(result) == upper(samples.word_texts(source))
    opened = docx.Document(io.BytesIO(result))
    assert opened.paragraphs[0].style.name == "Heading 1"
    bold = [run for run in opened.paragraphs[1].runs if run.bold]
    assert [run.text.strip() for run in bold] == ["VEINTE"]
    assert (bold[0].font.size.pt, str(bold[0].font.color.rgb)) == (14, "FF0000")
    assert [r.text.strip() for r in opened.paragraphs[1].runs if r.italic] == ["MESAS"]
    assert len(opened.paragraphs[2].runs) == 1  # runs of one look are joined
    assert opened.paragraphs[3].text == "NOMBRE\tANA\nFIN"
    assert opened.paragraphs[4].style.name == "List Bullet"


def test_fields_and_drawings_of_word_stay() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("hoja ")
    for kind, content in (("begin", None), (None, " PAGE "), ("separate", None), ("end", None)):
        run = paragraph.add_run()._r
        if kind:
            mark = run.makeelement(
                docx.oxml.ns.qn("w:fldChar"), {docx.oxml.ns.qn("w:fldCharType"): kind}
            )
        else:
            mark = run.makeelement(docx.oxml.ns.qn("w:instrText"), {})
            mark.text = content
        run.append(mark)
        if kind == "separate":
            paragraph.add_run("siete")  # the number that was computed last
    paragraph.add_run(" de muchas")
    source = samples._saved(document)
    (segment,) = read("a.docx", source).segments
    assert segment.text == "hoja  de muchas"
    opened = docx.Document(io.BytesIO(shouted(read("a.docx", source))))
    xml = opened.paragraphs[0]._p.xml
    assert opened.paragraphs[0].text.split() == ["HOJA", "siete", "DE", "MUCHAS"]
    assert xml.index("begin") < xml.index(" PAGE ") < xml.index("separate") < xml.index("end")


def test_slides_keep_their_layout() -> None:
    source = samples.slides_file()
    result = shouted(read("a.pptx", source))
    assert samples.slides_texts(result) == upper(samples.slides_texts(source))
    box = pptx.Presentation(io.BytesIO(result)).slides[0].shapes[1].text_frame.paragraphs[0]
    assert [run.text.strip() for run in box.runs if run.font.bold] == ["VEINTE"]


def test_open_document_keeps_its_layout() -> None:
    source = samples.open_file()
    result = shouted(read("a.odt", source))
    assert samples.open_texts(result) == upper(samples.open_texts(source))
    opened = opendocument.load(io.BytesIO(result))
    (span,) = opened.getElementsByType(text.Span)
    assert (str(span).strip(), span.getAttribute("stylename")) == ("VEINTE", "Bold")
    (note,) = opened.getElementsByType(text.Note)
    assert str(note.parentNode).startswith("HAY VEINTE MESAS")
    assert len(opened.getElementsByType(text.LineBreak)) == 1


def test_book_keeps_its_layout() -> None:
    result = shouted(read("a.epub", samples.book_file()))
    with zipfile.ZipFile(io.BytesIO(result)) as archive:
        first = archive.infolist()[0]
        assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)
        page = archive.read("OPS/una hoja.xhtml").decode()
        assert archive.read("OPS/toc.ncx").decode() == samples.CONTENTS.replace(">uno<", ">UNO<")
        package = archive.read("OPS/book.opf").decode()
    assert package == samples.PACKAGE.replace("un libro", "UN LIBRO")
    expected = samples.PAGE.replace("uno", "UNO").replace("hay", "HAY").replace("veinte", "VEINTE")
    assert page == expected.replace("mesas &amp; m&#xE1;s", "MESAS &amp; MÁS")


SUBTITLES = """1
00:00:01,000 --> 00:00:02,500 X1:40
<i>hay veinte mesas
en el jardín.</i>

2
00:00:03,000 --> 00:00:04,000
- hola.
- adiós.

3
00:00:05,000 --> 00:00:06,000
12
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles_keep_times_and_lines(newline: str) -> None:
    source = SUBTITLES.replace("\n", newline)
    document = read("a.srt", source.encode())
    assert [segment.text for segment in document.segments] == [
        *("hay veinte mesas en el jardín.", "- hola.", "- adiós.")
    ]
    result = shouted(document).decode()
    for text_of in ("hay veinte mesas", "en el jardín", "hola", "adiós"):
        source = source.replace(text_of, text_of.upper())
    assert result == source


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_plain_text_keeps_its_lines_and_encoding(encoding: str) -> None:
    source = "  una línea\r\n\r\n12\n\tdos \n"
    result = shouted(read("a.txt", source.encode(encoding)))
    assert result == source.upper().encode(encoding)


_HTML = b"<h1>a <b>b</b> 3</h1><td> 12 </td><!-- 3 --><td>&#160;</td><script>f(4)</script>"


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.txt", b"uno\n--\n12\n", "uno 12"),
        ("a.srt", SUBTITLES.encode(), "hay veinte mesas en el jardín. - hola. - adiós. 12"),
        ("a.html", _HTML, "a b 3 12"),
        ("a.odt", samples.open_file(), "un título hay veinte mesas. fin una nota a b celda 12"),
        ("a.pptx", samples.slides_file(), "una nota un título hay veinte mesas celda 12"),
        ("a.epub", samples.book_file(), "un libro uno hay veinte mesas & más uno"),
    ],
)
def test_lines_are_segments_and_numbers(name: str, content: bytes, lines: str) -> None:
    document = read(name, content)
    assert " ".join(document.lines).split() == lines.split()
    assert [one for one in document.lines if any(map(str.isalpha, one))] == [
        segment.text.strip() for segment in document.segments
    ]


def test_page_is_written_in_its_encoding() -> None:
    source = '<meta charset="iso-8859-1"><p>jardín</p>'.encode("latin1")
    document = read("a.html", source)
    assert shouted(document) == source.replace(b"jard\xedn", b"JARD\xcdN")
    (segment,) = document.segments
    other = document.write([transfer_markup(segment, "сад", links("jardín", "сад", None))])
    assert b"&#1089;" in other


def word_archive(document: bytes, **files: bytes) -> bytes:
    return samples.archive_of(word__document=document, **files)


WORD = b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">%b</w:document>'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"", "supported are: .txt"),
        ("a", b"", "supported are"),
        ("a.txt", b"\xff\xfa\x00", "UTF-8"),
        ("a.html", b'<meta charset="windows-1252">\x81', "encoding"),
        ("a.srt", b"hola", "no subtitles"),
        ("a.docx", b"", "damaged"),
        ("a.docx", b"PK\x03\x04 no archive", "damaged"),
        ("a.docx", samples.slides_file(), "another kind"),
        ("a.odt", samples.word_file(), "another kind"),
        ("a.epub", samples.word_file(), "META-INF/container.xml"),
        ("a.docx", samples.word_file()[:-400], "damaged"),
        ("a.docx", word_archive(b"<a><b></a>"), "not XML"),
        ("a.docx", word_archive(b"\xff" * 9), "not XML"),
        ("a.docx", word_archive(b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'), "document type"),
        (
            "a.docx",
            word_archive(
                '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>'.encode(
                    "utf-16"
                )
            ),
            "document type",
        ),
        ("a.docx", word_archive(b"<a>" * 999 + b"</a>" * 999), "not XML"),
        (
            "a.docx",
            word_archive(WORD % (b"<w:p>%b</w:p>" % (b"<w:r><w:t>a</w:t><w:sym/></w:r>" * 600))),
            "inline elements",
        ),
    ],
)
def test_files_that_cannot_be_read_are_refused(name: str, content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(name, content)


def test_archives_that_unpack_to_much_are_refused() -> None:
    for name, content, message in (
        ("word__media", b"\0" * 100_000_001, "unpacks to more"),
        ("word__header1", WORD % (b" " * 10_000_000), "text and markup"),
    ):
        files = {"word__document": WORD % b"", name: content}
        with pytest.raises(PayloadTooLarge, match=message):
            read("a.docx", samples.archive_of(**files))
    many = word_archive(WORD % b"", **{f"a{n}": b"" for n in range(5000)})
    with pytest.raises(PayloadTooLarge, match="5000 files"):
        read("a.docx", many)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"a\n" * 10_001),
        ("a.txt", b"1\n" * 1_000_000),
        ("a.srt", b"00:00:01,000 --> 00:00:02,000\na\n\n" * 10_001),
        ("a.html", b"<p>a" * 10_001),
        ("a.html", b"<br>" * 1_000_000),
        ("a.docx", word_archive(WORD % (b"<w:p/>" * 300_000))),
        (
            "a.docx",
            word_archive(WORD % (b"<w:p>%b</w:p>" % (b"<w:r><w:t>a</w:t></w:r>" * 100_000))),
        ),
    ],
    ids=range(7),
)
def test_documents_of_too_many_pieces_are_refused(name: str, content: bytes) -> None:
    with pytest.raises(PayloadTooLarge, match="divide it"):
        read(name, content)


def test_encrypted_archives_are_refused() -> None:
    content = bytearray(samples.word_file())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    with pytest.raises(InvalidRequest, match="encrypted"):
        read("a.docx", bytes(content))


def test_size_that_an_archive_hides_is_found() -> None:
    content = bytearray(word_archive(WORD % (b" " * 100_000)))
    place = content.index(b"PK\x01\x02") + 24  # the unpacked size in the directory
    content[place : place + 4] = (50).to_bytes(4, "little")
    with pytest.raises(InvalidRequest, match="damaged"):
        read("a.docx", bytes(content))


def test_files_that_stay_are_copied_as_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = bytes(range(256)) * 400
    source = word_archive(WORD % b"<w:p><w:r><w:t>hola</w:t></w:r></w:p>", word__media=picture)
    document = read("a.docx", source)
    unpacked: list[str] = []
    content = Archive._content

    def counted(self: Archive, entry: zipfile.ZipInfo) -> bytes:
        unpacked.append(entry.filename)
        return content(self, entry)

    monkeypatch.setattr(Archive, "_content", counted)
    result = document.write(document.segments)
    assert unpacked == []
    with (
        zipfile.ZipFile(io.BytesIO(source)) as before,
        zipfile.ZipFile(io.BytesIO(result)) as after,
    ):
        assert after.testzip() is None
        assert after.namelist() == before.namelist()
        for name in before.namelist():
            kept, own = before.getinfo(name), after.getinfo(name)
            assert (kept.compress_type, kept.date_time) == (own.compress_type, own.date_time)
        assert after.read("word/media.xml") == picture


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(method: int) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.writestr("word/document.xml", WORD % b"")
    with pytest.raises(InvalidRequest, match="deflate"):
        read("a.docx", target.getvalue())


def test_archives_whose_files_overlap_are_refused() -> None:
    content = bytearray(word_archive(WORD % b"", word__media=b"ab" * 9000))
    place = content.rindex(b"PK\x01\x02") + 20  # the packed size in the directory
    content[place : place + 4] = (len(content)).to_bytes(4, "little")
    with pytest.raises(InvalidRequest, match="larger than the file"):
        read("a.docx", bytes(content))


@pytest.mark.parametrize(
    ("count", "spaces"), [("3", 3), ("9" * 5000, 50), ("1" * 20, 50), ("x", 1)]
)
def test_counts_of_spaces_have_any_number_of_digits(count: str, spaces: int) -> None:
    names = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    content = f'<a {names}><text:p>uno<text:s text:c="{count}"/>dos</text:p></a>'.encode()
    (segment,) = read("a.odt", samples.archive_of(content=content)).segments
    assert segment.text == f"uno{' ' * spaces}dos"


def test_character_references_have_any_number_of_digits() -> None:
    (segment,) = read("a.html", b"<p>uno &#%b; dos</p>" % (b"9" * 5000)).segments
    assert segment.text == "uno \ufffd dos"


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
        segment.key, tuple(c.upper() if isinstance(c, str) else loud(c) for c in segment.children)
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
        ("<b>Ana</b> <i>canta</i>", "today Ana sings", "0-1 1-2", "<b>today Ana</b> <i>sings</i>"),
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
