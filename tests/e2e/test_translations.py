"""Translations through the real stack: alignments, glossaries, LibreTranslate."""

from __future__ import annotations

import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import docx
import httpx
import numpy as np
import pytest
import sacrebleu

from examples.en_fr.card import CHECKPOINT
from examples.en_fr.gazette import FAMOUS, sentences
from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from examples.texts import grammar
from examples.texts.lexicon import NAMES, NOUNS
from export.training.bahdanau import reader
from tests.e2e.conftest import Stack, start_stack, stop_stack
from triptych import Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient
from triptych.messages import Response

pytestmark = pytest.mark.integration
LOOK = {"model": "example-captioner", "return_attention": True}
SPANISH = "el mundo no es suficiente. este restaurante tiene buena comida"
AGREEMENT = "The agreement on the European Economic Area was signed in August 1992."


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_target_token_has_attention_over_the_source(
    client: Client, grpc_client: GrpcClient, num_beams: int
) -> None:
    asked = {"source": "es", "target": "en", "num_beams": num_beams, "return_alignment": True}
    (item,) = client.translate(SPANISH, **asked).data
    source, target = item.alignment.source_tokens, item.alignment.target_tokens
    weights = np.array(item.alignment.weights)
    assert weights.shape == (len(target), len(source))
    assert weights.min() >= 0
    assert weights.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    shown = "".join(source).replace("</s>", "").strip(), "".join(target).replace("</s>", "").strip()
    assert shown == (SPANISH, item.text)
    # Two sentences: neither attends to the other.
    row, column = target.index("</s>") + 1, source.index("</s>") + 1
    assert not weights[:row, column:].any()
    assert not weights[row:, :column].any()
    assert grpc_client.translate(SPANISH, **asked).data[0].alignment == item.alignment


def test_each_word_of_a_caption_has_attention_over_the_picture(
    client: Client, grpc_client: GrpcClient
) -> None:
    picture = as_png(next(picture for _, picture in heldout_pictures(1, seed=3)))
    (item,) = client.caption(picture, **LOOK).data
    rows, columns = item.attention.grid
    weights = np.array(item.attention.weights)
    assert weights.shape == (len(item.attention.tokens), rows * columns)
    assert weights.min() >= 0
    assert weights.sum(axis=1).max() <= 1 + 1e-3
    assert (item.text or "") in "".join(item.attention.tokens)
    assert grpc_client.caption(picture, **LOOK).data[0].attention == item.attention


def test_the_diagonal_turns_where_french_turns(client: Client) -> None:
    (item,) = client.translate(AGREEMENT, source="en", target="fr", return_alignment=True).data
    source, target = item.alignment.source_tokens, item.alignment.target_tokens
    looked_at = {
        token: source[int(np.argmax(row))]
        for token, row in zip(target, item.alignment.weights, strict=True)
    }
    assert looked_at[" zone"] == " Area"
    assert looked_at[" économique"] == " Economic"
    assert looked_at[" européenne"] == " European"


def test_request_without_languages_uses_the_default(client: Client) -> None:
    answer = client.translate("El mundo no es suficiente.")
    assert (answer.model, answer.data[0].text) == ("example-es-en", "The world is not enough.")
    for asked in ({"source": "en"}, {"target": "fr"}, {"source": "en", "target": "fr"}):
        answer = client.translate(FAMOUS[0], **asked)
        assert (answer.model, answer.data[0].text) == ("example-en-fr", FAMOUS[1])


@pytest.mark.parametrize("num_beams", [1, 4])
def test_served_translations_and_alignments_are_pytorchs(client: Client, num_beams: int) -> None:
    texts = [pair.source for pair in sentences("compositional", 16, seed=5)]
    answers = client.translate(texts, target="fr", num_beams=num_beams, return_alignment=True).data
    for given, wanted in zip(answers, reader(CHECKPOINT, num_beams)(texts), strict=True):
        assert given.text == wanted.text
        weights = np.array(given.alignment.weights)
        assert weights.shape == wanted.attention.shape
        assert np.abs(weights - wanted.attention).max() < 1e-4
        assert len(given.alignment.source_tokens) == weights.shape[1]
        assert len(given.alignment.target_tokens) == weights.shape[0]


def test_attention_runs_backwards_over_both_protocols(
    client: Client, grpc_client: GrpcClient
) -> None:
    for asked in (client, grpc_client):
        answer = asked.translate(FAMOUS[0], target="fr", return_alignment=True)
        found = answer.data[0].alignment
        looked_at = {
            target.strip(): found.source_tokens[int(np.argmax(row))].strip()
            for target, row in zip(found.target_tokens, found.weights, strict=True)
        }
        assert looked_at["zone"] == "Area"
        assert looked_at["économique"] == "Economic"
        assert looked_at["européenne"] == "European"


def test_a_translation_does_not_depend_on_its_batch(client: Client) -> None:
    texts = [pair.source for pair in sentences("compositional", 24, seed=6)]
    together = [item.text for item in client.translate(texts, target="fr").data]
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: client.translate(text, target="fr").data[0].text, texts))
    assert alone == together


COUNT = 24
ENGLISH = {noun.spanish: noun.english for noun in NOUNS}
SINGLE = [word for word in ENGLISH.values() if list(ENGLISH.values()).count(word) == 1]
UNKNOWN = ("diner", "trattoria", "New York office", "blorp", "qubit", "snark wagon")
COPIED = ("{name}", "%s", "https://example.com/a?b=1", "Müller-Lüdenscheidt", "<b>", "GPT-4o")
Case = tuple[str, dict[str, str], str]
"""Spanish, its glossary, and the English that follows from both."""


def cases(kind: str) -> list[Case]:
    """Sentences with one to three nouns whose English is in the reference once."""
    random, found = Random(5), []
    for pair in grammar.sentences("held_out", 40 * COUNT, seed=1):
        spanish, english = (re.findall(r"\w+", text) for text in (pair.spanish, pair.english))
        known = [
            word
            for word in dict.fromkeys(spanish)
            if ENGLISH.get(word) in SINGLE
            and spanish.count(word) == english.count(ENGLISH[word]) == 1
        ][:3]
        if known:
            glossary = {word: ENGLISH[word] for word in known}
            reference = pair.english
            if kind != "own words":
                glossary = {word: other(ENGLISH[word], english, kind, random) for word in known}
                if len(set(glossary.values())) < len(known):
                    continue
            for word in known:
                reference = re.sub(rf"\b{ENGLISH[word]}\b", glossary[word], reference)
            found.append((pair.spanish, glossary, reference))
        if len(found) == COUNT:
            break
    return found


def other(word: str, english: list[str], kind: str, random: Random) -> str:
    """A word that the model would not choose; it begins with a vowel if the model's does."""
    words = UNKNOWN if kind == "unknown words" else [one for one in SINGLE if one not in english]
    is_vowel = word[0] in "aeiou" and kind != "unknown words"
    return random.choice([one for one in words if (one[0] in "aeiou") == is_vowel])


def bleu(outputs: list[str], wanted: list[Case]) -> float:
    return float(sacrebleu.corpus_bleu(outputs, [[one[2] for one in wanted]]).score)


def translated(client: Client, wanted: list[Case]) -> list[str]:
    """Each sentence with its own glossary, several in flight."""
    with ThreadPoolExecutor(8) as pool:
        return list(
            pool.map(lambda one: client.translate(one[0], glossary=one[1]).data[0].text, wanted)
        )


@pytest.mark.parametrize(
    "kind",
    [
        "own words",
        pytest.param("other words", marks=pytest.mark.full),
        pytest.param("unknown words", marks=pytest.mark.full),
    ],
)
def test_all_terms_are_rendered_where_they_belong(client: Client, kind: str) -> None:
    wanted = cases(kind)
    assert len(wanted) == COUNT
    outputs = translated(client, wanted)
    for output, (_, glossary, _) in zip(outputs, wanted, strict=True):
        for rendering in glossary.values():
            assert re.search(rf"(?<!\w){re.escape(rendering)}(?!\w)", output, re.IGNORECASE)
    plain = [item.text for one in wanted for item in client.translate(one[0]).data]
    own = bleu(plain, [(text, {}, reference) for text, _, reference in cases("own words")])
    assert bleu(outputs, wanted) > own - (1 if kind == "own words" else 3)


def test_copied_texts_are_copied_and_the_rest_is_translated(client: Client) -> None:
    random, wanted = Random(3), []
    for pair in grammar.sentences("held_out", 2000, seed=2):
        for name, _ in NAMES:
            if pair.spanish.count(name) == pair.english.count(name) == 1:
                text = random.choice(COPIED)
                reference = pair.english.replace(name, text)
                wanted.append((pair.spanish.replace(name, text), {"text": text}, reference))
                break
        if len(wanted) == COUNT:
            break
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda one: client.translate(one[0], do_not_translate=one[1]["text"]), wanted
        )
        outputs = [answer.data[0].text for answer in answers]
    assert all(one[1]["text"] in output for output, one in zip(outputs, wanted, strict=True))
    assert bleu(outputs, wanted) > 98


def test_both_searches_succeed(client: Client) -> None:
    """The forced one too, of which nothing is seen where the plain one has the terms."""
    text, glossary, _ = cases("own words")[0]
    plain, forced = client.translate(text), client.translate(text, glossary=glossary)
    assert forced.data == plain.data
    assert forced.usage.completion_tokens == 2 * plain.usage.completion_tokens


TEXT = "Hola, {name}. El restaurante tiene\n buena comida en Madrid."
STREAMED = {
    "glossary": {"restaurante": "diner", "comida": "grub"},
    "do_not_translate": ["{name}"],
}
TERMS = {**STREAMED, "alternatives": 2, "return_alignment": True}


def test_all_ways_to_ask_give_the_same(
    client: Client, grpc_client: GrpcClient, stack: Stack, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    answer = client.translate(TEXT, source="es", **TERMS)
    assert grpc_client.translate(TEXT, source="es", **TERMS) == answer
    (item,) = answer.data
    assert "{name}" in item.text
    assert "diner" in item.text
    assert "grub" in item.text
    assert len(item.alternatives) == 2
    assert "".join(item.alignment.target_tokens).count("diner") == 1
    file = tmp_path / "terms.txt"
    file.write_text("restaurante => diner\n\ncomida\tgrub\n")
    flags = ["--glossary-file", str(file), "--do-not-translate", "{name}", "-s", "es"]
    assert triptych(["translate", TEXT, *flags, "--url", stack.url]) == 0
    assert capsys.readouterr().out == item.text + "\n"
    flags = ["--glossary", "restaurante=diner", "--glossary", "comida=grub"]
    flags += ["--do-not-translate-kind", "placeholders", "-s", "es"]
    assert triptych(["translate", TEXT, *flags, "--url", stack.url]) == 0
    assert capsys.readouterr().out == item.text + "\n"


def test_streams_have_the_terms_too(
    client: Client, grpc_client: GrpcClient, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "El gato duerme. " * 8 + TEXT
    whole = client.translate(text, source="es", num_beams=1, **STREAMED).data[0].text
    for each in (client, grpc_client):
        chunks = list(each.translate_stream(text, source="es", **STREAMED))
        assert "".join(chunk.text for chunk in chunks) == whole
        # How many tokens a chunk holds depends on the time; the sentences with terms come last.
        assert chunks[0].text
        assert "diner" not in chunks[0].text, "sentences without terms are not streamed"
        assert chunks[-1].finish_reason == "stop"
    flags = ["--glossary", "restaurante=diner", "--glossary", "comida=grub", "-s", "es"]
    flags += ["--do-not-translate", "{name}", "--url", stack.url]
    assert triptych(["translate", text, "--stream", *flags]) == 0
    assert capsys.readouterr().out == whole + "\n"


def test_requests_beside_are_not_changed(client: Client) -> None:
    texts = [pair.spanish for pair in grammar.sentences("compositional", 24, seed=7)]

    def ask(number: int) -> Response:
        terms = {"glossary": {"el": "yon", "la": "yon"}} if number % 2 else {}
        return client.translate(texts[number], num_beams=4, **terms)

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(len(texts))))
    for number in range(0, len(texts), 2):
        assert found[number] == client.translate(texts[number], num_beams=4)


STORED_TEXT = "El restaurante tiene buena comida."


@pytest.mark.full
def test_a_restart_keeps_them(repository: Path, tmp_path: Path) -> None:
    for is_first in (True, False):
        stack = start_stack(repository, tmp_path / "serve.log")
        with ExitStack() as ends, Client(stack.url) as client:
            ends.callback(stop_stack, stack)
            if is_first:
                client.put_glossary("kitchen", {"restaurante": "diner"}, source="es", target="en")
            assert "diner" in client.translate(STORED_TEXT, glossary_name="kitchen").data[0].text


def test_requests_while_it_changes_have_one_whole_version(client: Client, stack: Stack) -> None:
    renderings = ("diner", "eatery")
    client.put_glossary("changing", {"restaurante": "diner"}, source="es", target="en")
    is_done = threading.Event()

    def change() -> None:
        with Client(stack.url) as other:
            turn = 0
            while not is_done.is_set():
                turn += 1
                other.put_glossary("changing", {"restaurante": renderings[turn % 2]})

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(20):
            text = client.translate(STORED_TEXT, source="es", glossary_name="changing").data[0].text
            assert sum(rendering in text for rendering in renderings) == 1
    finally:
        is_done.set()
        changing.join()
    client.delete_glossary("changing")


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
