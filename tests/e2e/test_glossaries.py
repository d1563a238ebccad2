"""Glossaries and texts that are not translated, through the real stack, on held-out sentences."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import sacrebleu

from examples.texts.grammar import sentences
from examples.texts.lexicon import NAMES, NOUNS
from tests.e2e.conftest import Stack
from triptych import Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient
from triptych.messages import Response

pytestmark = pytest.mark.integration

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
    for pair in sentences("held_out", 40 * COUNT, seed=1):
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
    for pair in sentences("held_out", 2000, seed=2):
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
    texts = [pair.spanish for pair in sentences("compositional", 24, seed=7)]

    def ask(number: int) -> Response:
        terms = {"glossary": {"el": "yon", "la": "yon"}} if number % 2 else {}
        return client.translate(texts[number], num_beams=4, **terms)

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(len(texts))))
    for number in range(0, len(texts), 2):
        assert found[number] == client.translate(texts[number], num_beams=4)
