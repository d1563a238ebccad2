"""Documents made with the libraries that people use, and read again with them."""

from __future__ import annotations

import io
import zipfile

import docx
import pptx
from docx.shared import Pt, RGBColor
from odf import opendocument, style, table, text
from odf import teletype as odf_text
from pptx.util import Inches


def word_file() -> bytes:
    """Runs of several formats, a table, a header, a list, a tab and a page number."""
    document = docx.Document()
    document.add_heading("un título", 1)
    paragraph = document.add_paragraph("hay ")
    bold = paragraph.add_run("veinte")
    bold.bold, bold.font.size, bold.font.color.rgb = True, Pt(14), RGBColor(255, 0, 0)
    paragraph.add_run(" ")
    paragraph.add_run("mesas").italic = True
    paragraph.add_run(".")
    split = document.add_paragraph()
    for piece in ("en", " el jar", "dín"):
        split.add_run(piece)
    tabbed = document.add_paragraph("nombre\tana")
    tabbed.add_run().add_break()
    tabbed.add_run("fin")
    document.add_paragraph("uno", style="List Bullet")
    cells = document.add_table(1, 2).rows[0].cells
    cells[0].text, cells[1].text = "celda", "12"
    document.sections[0].header.paragraphs[0].text = "cabecera"
    document.sections[0].footer.paragraphs[0].text = "pie"
    return _saved(document)


def word_texts(content: bytes) -> list[str]:
    """Paragraphs, cells, header and footer."""
    document = docx.Document(io.BytesIO(content))
    section = document.sections[0]
    return [
        *(paragraph.text for paragraph in document.paragraphs),
        *(cell.text for row in document.tables[0].rows for cell in row.cells),
        *(part.paragraphs[0].text for part in (section.header, section.footer)),
    ]


def slides_file() -> bytes:
    """A title, a box with two formats, a table and notes."""
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "un título"
    frame = slide.shapes.add_textbox(Inches(1), Inches(2), Inches(4), Inches(1)).text_frame
    paragraph = frame.paragraphs[0]
    paragraph.add_run().text = "hay "
    bold = paragraph.add_run()
    bold.text, bold.font.bold = "veinte", True
    paragraph.add_line_break()
    paragraph.add_run().text = "mesas"
    shape = slide.shapes.add_table(1, 2, Inches(1), Inches(4), Inches(4), Inches(1))
    shape.table.cell(0, 0).text, shape.table.cell(0, 1).text = "celda", "12"
    slide.notes_slide.notes_text_frame.text = "una nota"
    return _saved(presentation)


def slides_texts(content: bytes) -> list[str]:
    """Texts of all shapes, cells and notes."""
    slide = pptx.Presentation(io.BytesIO(content)).slides[0]
    texts = [shape.text_frame.text for shape in slide.shapes if shape.has_text_frame]
    tables = [shape.table for shape in slide.shapes if shape.has_table]
    cells = [cell.text for each in tables for row in each.rows for cell in row.cells]
    return [*texts, *cells, slide.notes_slide.notes_text_frame.text]


def open_file() -> bytes:
    """Spans, a note, a table, spaces in a row, a line break."""
    document = opendocument.OpenDocumentText()
    bold = style.Style(name="Bold", family="text")
    bold.addElement(style.TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    document.text.addElement(text.H(outlinelevel=1, text="un título"))
    paragraph = text.P(text="hay ")
    paragraph.addElement(text.Span(stylename=bold, text="veinte"))
    paragraph.addText(" mesas")
    note = text.Note(noteclass="footnote")
    note.addElement(text.NoteCitation(text="1"))
    body = text.NoteBody()
    body.addElement(text.P(text="una nota"))
    note.addElement(body)
    paragraph.addElement(note)
    paragraph.addText(".")
    paragraph.addElement(text.LineBreak())
    paragraph.addText("fin")
    document.text.addElement(paragraph)
    spaced = text.P()
    odf_text.addTextToElement(spaced, "a   b")
    document.text.addElement(spaced)
    rows = table.Table()
    row = table.TableRow()
    for content in ("celda", "12"):
        cell = table.TableCell()
        cell.addElement(text.P(text=content))
        row.addElement(cell)
    rows.addElement(row)
    document.text.addElement(rows)
    return _saved(document)


def open_texts(content: bytes) -> list[str]:
    """Headings and paragraphs, those of notes and cells included."""
    document = opendocument.load(io.BytesIO(content))
    found = [*document.getElementsByType(text.H), *document.getElementsByType(text.P)]
    return [odf_text.extractText(one) for one in found]


CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>"""
PACKAGE = """<?xml version="1.0" encoding="UTF-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>un libro</dc:title>
<dc:creator>ana</dc:creator></metadata>
<manifest><item id="a" href="una%20hoja.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="toc.ncx" media-type="application/x-dtbncx+xml"/></manifest>
<spine toc="n"><itemref idref="a"/></spine></package>"""
PAGE = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>uno</title></head>
<body><p class="x">hay <b>veinte</b> mesas &amp; m&#xE1;s</p></body></html>"""
CONTENTS = """<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/">
<navMap><navPoint id="1"><navLabel><text>uno</text></navLabel>
<content src="una%20hoja.xhtml"/></navPoint></navMap></ncx>"""


def book_file() -> bytes:
    """A book of one page."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, content in (
            ("META-INF/container.xml", CONTAINER),
            ("OPS/book.opf", PACKAGE),
            ("OPS/una hoja.xhtml", PAGE),
            ("OPS/toc.ncx", CONTENTS),
        ):
            archive.writestr(name, content)
    return target.getvalue()


def archive_of(**files: bytes) -> bytes:
    """An archive; a double underscore is a slash, a single one at the end `.xml`."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/") + ".xml", content)
    return target.getvalue()


def _saved(document: object) -> bytes:
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()
