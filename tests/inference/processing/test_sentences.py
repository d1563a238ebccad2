"""Where sentences end, and that nothing between them is lost."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.processing.sentences import is_blank, split_sentences

CASES = {
    "two sentences": ("Hola. Adiós.", ["Hola.", "Adiós."]),
    "small letters": (
        "este restaurante tiene buena comida. el mundo no es suficiente.",
        ["este restaurante tiene buena comida.", "el mundo no es suficiente."],
    ),
    "no punctuation": ("el mundo no es suficiente", ["el mundo no es suficiente"]),
    "Spanish openings": (
        "¿Dónde está? ¡Aquí! ¿Y tú?",
        ["¿Dónde está?", "¡Aquí!", "¿Y tú?"],
    ),
    "opening after a stop": ("Llueve. ¿vienes?", ["Llueve.", "¿vienes?"]),
    "several marks": ("¿¡Qué!? No... Sí.", ["¿¡Qué!?", "No...", "Sí."]),
    "ellipsis goes on": ("Espera... no vayas. Ven…", ["Espera... no vayas.", "Ven…"]),
    "decimals": ("Cuesta 3.50 euros. Pesa 1.5 kg.", ["Cuesta 3.50 euros.", "Pesa 1.5 kg."]),
    "a year ends it": ("Nació en 1990. Vive aquí.", ["Nació en 1990.", "Vive aquí."]),
    "addresses": ("Lee www.uno.es y a.b@c.es hoy. Fin", ["Lee www.uno.es y a.b@c.es hoy.", "Fin"]),
    "titles": ("El Sr. Ruiz y la Dra. Paz. Bien.", ["El Sr. Ruiz y la Dra. Paz.", "Bien."]),
    "English titles": ("Mr. Fox met Dr. Who. They ran.", ["Mr. Fox met Dr. Who.", "They ran."]),
    "initials": ("J. R. R. Tolkien escribió. Mucho.", ["J. R. R. Tolkien escribió.", "Mucho."]),
    "abbreviations inside": ("Usa p. ej. pan, i.e. eso. Ya", ["Usa p. ej. pan, i.e. eso.", "Ya"]),
    "etc. in the middle": ("Pan, vino, etc. para todos. Ya", ["Pan, vino, etc. para todos.", "Ya"]),
    "etc. at the end": ("Pan, vino, etc. Luego dormimos.", ["Pan, vino, etc.", "Luego dormimos."]),
    "quotes": ('Dijo "ven." Luego fue.', ['Dijo "ven."', "Luego fue."]),
    "quote goes on": ("«¡Ven!» dijo ella. Fue.", ["«¡Ven!» dijo ella.", "Fue."]),
    "quote opens": ("Fue. «Ven», dijo.", ["Fue.", "«Ven», dijo."]),
    "parentheses": ("(Vino tarde.) Comió.", ["(Vino tarde.)", "Comió."]),
    "numbered list": ("1. Pan\n2. Vino", ["1. Pan", "2. Vino"]),
    "line breaks": ("Título\n\nUna línea\r\notra", ["Título", "Una línea", "otra"]),
    "Chinese": ("你好。再见！", ["你好。", "再见！"]),
    "marks alone": ("...", ["..."]),
    "nothing": ("", []),
    "spaces alone": (" \n ", []),
    "what is not seen": ("\u200b", []),
    "a line that is not seen": ("Uno.\n\ufeff\u200b\nDos.", ["Uno.", "Dos."]),
    "first and last lines": ("\ufeff\nUno.\n\x00", ["Uno."]),
    "joiners within a word": ("\u200bUn\u00ado. Dos.", ["\u200bUn\u00ado.", "Dos."]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "sentences"), CASES.values(), ids=CASES)
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: list[str]) -> None:
    assert list(split_sentences(text).sentences) == sentences


def test_joining_keeps_indents_and_line_breaks() -> None:
    paragraph = split_sentences("  Uno. Dos.\n\n\tTres.  Cuatro\n")
    assert paragraph.join(["One.", "Two.", "Three.", "Four"]) == "  One. Two.\n\n\tThree.  Four\n"


def test_joining_keeps_lines_that_are_not_seen() -> None:
    paragraph = split_sentences("\ufeff\nUno.\n \u200b\nDos.")
    assert paragraph.join(["One.", "Two."]) == "\ufeff\nOne.\n \u200b\nTwo."


def test_characters_that_are_not_seen_are_those_of_their_categories() -> None:
    unseen = ("Zs", "Zl", "Zp", "Cc", "Cf")
    for character in map(chr, range(sys.maxunicode + 1)):
        if is_blank(character) != (unicodedata.category(character) in unseen):
            pytest.fail(f"U+{ord(character):04X}")


def test_time_is_linear_in_lines_that_are_not_seen() -> None:
    text = "\u200b\n" * 200_000
    assert split_sentences(text).gaps == (text,)
    paragraph = split_sentences(f"a\n{text}b")
    assert (paragraph.sentences, paragraph.join(["a", "b"])) == (("a", "b"), f"a\n{text}b")


def test_joining_another_number_of_sentences_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 sentences, got 1"):
        split_sentences("Uno. Dos.").join(["One."])


SNIPPETS = st.sampled_from(
    ["Hola", "adiós", "3.5", "Sr.", "etc.", ".", "...", "?", "!", "¿", "¡", '"', "»", " ", "  ",
     "\n", "\r\n", "\t", "。", "a", "\u00a0", "\u2028", "\x1f", "1."]
)  # fmt: skip
TEXTS = st.text() | st.lists(SNIPPETS).map("".join)


@given(TEXTS)
def test_splitting_and_joining_is_lossless(text: str) -> None:
    paragraph = split_sentences(text)
    assert paragraph.join(paragraph.sentences) == text
    assert len(paragraph.gaps) == len(paragraph.sentences) + 1
    assert all(map(is_blank, paragraph.gaps))
    assert not any(map(is_blank, paragraph.sentences))
    assert all(sentence.strip() == sentence != "" for sentence in paragraph.sentences)


@given(TEXTS)
def test_no_sentence_holds_a_line_break(text: str) -> None:
    assert not any(set(sentence) & set("\n\r") for sentence in split_sentences(text).sentences)


def test_long_text_splits_in_linear_time() -> None:
    import time

    def seconds(repeats: int) -> float:
        text = ("Hola amigo. " * repeats) + ". " * repeats + "…" * repeats + " " * repeats + "x"
        started = time.perf_counter()
        split_sentences(text)
        return time.perf_counter() - started

    seconds(100)
    assert seconds(20_000) < 40 * max(seconds(2_000), 0.005)


def test_rest_behind_enough_sentences_is_one() -> None:
    paragraph = split_sentences("  Uno. Dos. Tres. Cuatro.\n", 2)
    assert paragraph.sentences == ("Uno.", "Dos.", "Tres. Cuatro.")
    assert paragraph.join(paragraph.sentences) == "  Uno. Dos. Tres. Cuatro.\n"
