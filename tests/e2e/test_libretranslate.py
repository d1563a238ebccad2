"""LibreTranslate's client against the examples, served by a real Triton."""

from __future__ import annotations

import io

import docx
import httpx
import pytest

from tests.e2e.conftest import Stack

pytestmark = pytest.mark.integration


def test_markup_follows_the_words(stack: Stack) -> None:
    source = (
        '<p id=a>¿Dónde está el <b>gato negro</b> de <a href="/p">Pedro</a>?<br>'
        "Hay <i>veinte</i> mesas.</p>"
    )
    fields = {"q": source, "source": "es", "target": "en", "format": "html"}
    found = httpx.post(f"{stack.url}/translate", data=fields, timeout=60).json()
    assert found["translatedText"] == (
        '<p id=a>Where is <a href="/p">Pedro\'s</a> <b>black cat</b>?<br>'
        "There are <i>twenty</i> tables.</p>"
    )
    fields |= {"q": "The <b>agreement</b> was signed.", "source": "en", "target": "fr"}
    found = httpx.post(f"{stack.url}/translate", data=fields, timeout=60).json()
    assert found["translatedText"].startswith("<b>L'accord</b> ")


def test_word_file_keeps_its_formats(stack: Stack) -> None:
    document = docx.Document()
    document.add_heading("El mundo no es suficiente.", 1)
    paragraph = document.add_paragraph("¿Dónde está el ")
    paragraph.add_run("gato negro").bold = True
    paragraph.add_run(" de Pedro?")
    content = io.BytesIO()
    document.save(content)
    fields = {"source": "auto", "target": "en"}
    files = {"file": ("a.docx", content.getvalue())}
    found = httpx.post(f"{stack.url}/translate_file", data=fields, files=files, timeout=60).json()
    file = httpx.get(found["translatedFileUrl"], timeout=60)
    heading, question = docx.Document(io.BytesIO(file.content)).paragraphs
    assert (heading.text, heading.style.name) == ("The world is not enough.", "Heading 1")
    assert question.text == "Where is Pedro's black cat?"
    assert [run.text.strip() for run in question.runs if run.bold] == ["black cat"]


def test_one_endless_sentence_does_not_refuse_a_file(stack: Stack) -> None:
    line = "El gato está durmiendo en la cocina, " * 40 + "el mundo no es suficiente"
    content = f"El mundo no es suficiente.\n{line}\nHay veinte mesas.\n"
    fields, files = {"source": "es", "target": "en"}, {"file": ("a.txt", content.encode())}
    found = httpx.post(f"{stack.url}/translate_file", data=fields, files=files, timeout=60).json()
    first, long, last = httpx.get(found["translatedFileUrl"], timeout=60).text.splitlines()
    assert (first, last) == ("The world is not enough.", "There are twenty tables.")
    assert long.count("cat is sleeping") >= 10
