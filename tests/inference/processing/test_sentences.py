"""Where sentences and terms are found in a text."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest, TooLong
from inference.processing.abbreviations import rules_of
from inference.processing.sentences import is_blank, split_sentences, with_parts
from inference.processing.terms import (
    PATTERNS,
    TermIndex,
    WordEdges,
    composed,
    is_word_character,
    joins,
    word_edges,
)

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


COUNTS = [
    # language, text, sentences
    ("de", 'Der 2. Weltkrieg endete 1945. Danach kam Frieden.', 2),
    ("de", 'Im 19. Jahrhundert lebte Dr. Müller in der Hauptstr. 5 in Bonn.', 1),
    ("de", 'Ludwig XIV. war König. Er starb 1715.', 2),
    ("de", 'Siehe S. 5, Abb. 3 und Kap. 2.', 1),
    ("de", 'Das kostet ca. 5 Mio. Euro. Wir zahlen.', 2),
    ("de", 'Er sagte: „Ich komme.“ Dann ging er.', 2),
    ("de", '»Komm her.« Er kam.', 2),
    ("de", 'Prof. Dr. med. Hans Meier, geb. 1950, lebt u. a. in Köln.', 1),
    ("de", 'Wir haben Äpfel, Birnen usw. Das reicht.', 2),
    ("de", 'd. h. wir gehen.', 1),
    ("de", 'Er kam um 5. Sie kam um 6.', 2),
    ("fr", 'M. Dupont et Mme. Durand sont là. Ils mangent.', 2),
    ("fr", "Quoi ? Je ne sais pas ! D'accord.", 3),
    ("fr", '« Bonjour ! » dit-il. Il partit.', 2),
    ("fr", 'Voir p. ex. la fig. 3, chap. 2.', 1),
    ("fr", 'Le XIXe s. av. J.-C. fut long.', 1),
    ("fr", 'Il habite au 5 av. Foch, bd. Saint-Michel.', 1),
    ("fr", 'Les pommes, poires, etc. Ensuite on part.', 2),
    ("fr", '– Qui est là ? – demanda-t-il.', 1),
    ("es", 'El Sr. López vive en la Avda. de América, núm. 5. Ella no.', 2),
    ("es", 'EE. UU. es grande. Sí.', 2),
    ("es", 'Llegó a las 5 p. m. y se fue.', 1),
    ("es", 'Pesa 3 kgs. de más, aprox. como ayer.', 1),
    ("es", '¿Qué? ¡No! Vale…', 3),
    ("es", 'Véase pág. 5 y ss.', 1),
    ("it", 'Il sig. Bianchi e la sig.ra Verdi abitano in p.zza Dante n. 5.', 1),
    ("it", "L'avv. Neri parla. Poi tace.", 2),
    ("it", 'Cfr. pag. 10, art. 5, comma 2.', 1),
    ("it", 'È nato nel 300 a.C. a Roma.', 1),
    ("pt", 'O Sr. Silva e a Sra. Costa moram na R. Augusta, n.º 5.', 1),
    ("pt", 'A Dra. Ana chegou. Ela fala.', 2),
    ("pt", 'Veja a pág. 5, por ex. aqui.', 1),
    ("nl", 'Dhr. Jansen woont o.a. in Den Haag. Hij werkt.', 2),
    ("nl", 'Dat is bijv. een huis, d.w.z. een woning.', 1),
    ("nl", 'Zie blz. 5 en nr. 3.', 1),
    ("pl", 'Mieszka przy ul. Długiej 5, m.in. z dr. Nowakiem.', 1),
    ("pl", 'W XIX w. było inaczej. Dziś nie.', 2),
    ("pl", 'Prof. Kowalski, tzn. dr hab. Jan, mówi o św. Janie.', 1),
    ("pl", 'Koty, psy itd. On lubi.', 2),
    ("pl", 'Dnia 3. maja przyszedł.', 1),
    ("cs", 'Např. dům č. 5 na ul. Husově.', 1),
    ("cs", 'Dne 3. 5. 2020 přišel. On odešel.', 2),
    ("cs", 'Karel IV. Lucemburský žil ve 14. století. Byl král.', 2),
    ("cs", 'Tzv. Praha, resp. Brno atd. On ví.', 2),
    ("sk", 'Napr. tzv. dom na ul. Hlavnej č. 5.', 1),
    ("hu", 'A 2. Magyar Hadsereg harcolt. Ő látta.', 2),
    ("hu", 'Pl. Dr. Kovács, ill. ifj. Nagy úr jött.', 1),
    ("hu", '2020. január 5. napján, kb. 3 óra.', 1),
    ("da", 'Vi har f.eks. katte, bl.a. hunde. Han kom.', 2),
    ("da", 'Den 3. maj kom kong Christian 4. Den dag regnede det.', 2),
    ("no", 'Det er bl.a. her, jf. kap. 3. Han vet.', 2),
    ("sv", 'Det är t. ex. bra, dvs. bl.a. här. Han vet.', 2),
    ("fi", 'Esim. 3. luokka ja n. 5 metriä. Hän tuli.', 2),
    ("fi", 'Hän tuli klo 5. Se oli hyvä.', 2),
    ("tr", 'Örn. Dr. Ahmet, 19. yüzyıl ve T.C. Sağlık Bakanlığı.', 1),
    ("tr", 'Bkz. s. 5. O geldi.', 2),
    ("tr", 'II. Dünya Savaşı bitti. O geldi.', 2),
    ("ro", 'Dl. Popescu, str. Mare nr. 5, d-na Ana. Ea vine.', 2),
    ("ru", 'Он родился в 1990 г. Потом уехал.', 2),
    ("ru", 'В г. Москве живёт проф. Иванов А. С. и др. люди.', 1),
    ("ru", 'Коты, собаки и т. д. Он любит.', 2),
    ("ru", 'См. стр. 5, рис. 3, т. е. здесь.', 1),
    ("ru", 'А. С. Пушкин родился. Он умер.', 2),
    ("uk", 'На вул. Шевченка, буд. 5, м. Київ. Він там.', 2),
    ("uk", 'Див. с. 5, тобто напр. тут.', 1),
    ("bg", 'Живее на ул. Витоша, бр. 5, т.е. там.', 1),
    ("sr", 'Живи у ул. Кнеза, нпр. тамо. Он је ту.', 2),
    ("hr", 'Npr. dr. Horvat iz 19. stoljeća itd. On zna.', 2),
    ("sl", 'Npr. dr. Novak, tj. ga. Ana. On ve.', 2),
    ("lt", 'Pvz. dr. Jonas, t. y. gyd. Petras. Jis žino.', 2),
    ("lv", 'Piem. dr. Bērziņš, t. i. prof. Kalns. Viņš zina.', 2),
    ("et", 'Nt. dr. Tamm, s.t. prof. Kask. Ta teab.', 2),
    ("el", 'Ο κ. Παπαδόπουλος, π.χ. εδώ. Πού είσαι; Εδώ!', 3),
    ("el", 'Τι είναι αυτό; Δεν ξέρω.', 2),
    ("ca", 'El Sr. Puig, p. ex. aquí. Ella no.', 2),
    ("hy", 'Բարև։ Ինչպե՞ս ես։ Լավ։', 3),
    ("hy", 'Բարև: Ինչպես ես:', 2),
    ("am", 'ሰላም፡፡ ደህና ነህ፧ አዎ።', 3),
    ("km", 'នេះជាល្អ។ នោះជាអាក្រក់។', 2),
    ("km", 'ឆ្កែ ឆ្មា ។ល។', 1),
    ("bo", 'ང་ནི་བོད་པ་ཡིན། ཁྱེད་རང་ག་པར་ཡིན།', 2),
    ("my", 'သူသွားပြီ။ ငါလာမယ်။', 2),
    ("hi", 'डॉ. शर्मा आए। वे गए॥ ठीक है?', 3),
    ("bn", 'ডঃ রায় এলেন। মোঃ আলী গেলেন।', 2),
    ("ur", 'وہ آیا۔ تم کہاں ہو؟ ٹھیک!', 3),
    ("ur", '۱۔ پہلا نکتہ', 1),
    ("fa", 'او آمد. کجا بودی؟ اینجا.', 3),
    ("ar", 'جاء د. أحمد. ذهب؟ نعم!', 3),
    ("he", 'הוא בא. לאן הלכת? הביתה!', 3),
    ("he", "פרופ' כהן דיבר. ד\"ר לוי שתק.", 2),
    ("th", 'สวัสดีครับ ดร.สมชาย พ.ศ. 2563', 1),
    ("zh", '他说：“你好吗？”我说：“很好。”然后走了。', 2),
    ("zh", '你好!再见?好.', 3),
    ("zh", '价格是3.14元。好！', 2),
    ("zh", '(好。)他走了。', 2),
    ("ja", '「行く？」と聞いた。「うん。」彼は言った。', 3),
    ("ja", 'ＡＢＣ．ｃｏｍを見た．次．', 2),
    ("ja", 'Ｖｅｒ．２．０です。', 1),
    ("ko", '안녕하세요. 반갑습니다! 네.', 3),
    ("ko", '했다.그는 갔다.', 2),
    ("ka", 'გამარჯობა. როგორ ხარ? კარგად.', 3),
    ("te", 'డా. రావు వచ్చారు. ఆయన వెళ్ళారు.', 2),
    ("ta", 'திரு. குமார் வந்தார். அவர் போனார்.', 2),
    ("si", 'ඔහු ආවේය. ඇය ගියාය෴ හරි.', 3),
    ("vi", 'TS. Nguyễn đến TP. Hồ Chí Minh. Ông vui.', 2),
    ("id", 'Bpk. Budi tinggal di Jl. Mawar No. 5, dll. Dia baik.', 2),
    ("en", 'See fig. 3, vol. 2, pp. 5-9, cf. Smith et al. 2020.', 1),
    ("en", 'He paid $3.50. It was 5 p.m. He left.', 3),
    ("en", 'J. R. R. Tolkien wrote it. He was great.', 2),
    ("en", 'Mail a.b@c.org. Then visit www.x.org/a.b?c=d. Done.', 3),
    ("en", 'Open main.py. Run it!', 2),
    ("en", 'We need: 1. bread 2. milk.', 1),
    ("en", 'He left... Then came back. What?! Yes.', 4),
    ("en", 'First. [1] Second.', 2),
    ("en", 'I asked (why?) and left. (He knew.) Fine.', 3),
    ("en", 'x\x85y\u2029z\x0cw\r\nv\rq\x1cp', 7),
    ("en", 'The Washington D.C. area is big. The U.S. is too.', 2),
    ("en", 'Did he? \u200fYes.', 2),
    ("en", 'Wow‼️ Next.', 2),
    ("en", 'hi there. how are you?', 2),
    ("en", 'I said no. Then he left.', 2),
    ("en", 'It is in Fig. The text.', 2),
    ("eu", '19. mendean, adb. hemen.', 1),
    ("is", 'Hann kom t.d. 3. maí. Hún fór.', 2),
    ("sq", 'P.sh. Z. Gjoka, rr. Durrësit. Ai erdhi.', 2),
    ("af", 'Mnr. Botha woon bv. hier. Hy werk.', 2),
    ("sw", 'Bw. Juma alikuja. Bi. Asha aliondoka.', 2),
    ("ga", 'Tá an tUas. Ó Briain anseo. Tá sé.', 2),
    ("kk", '19 ғ. т.б. адамдар келді. Ол кетті.', 2),
    ("mn", 'Тэр ирэв. Би явлаа.', 2),
    ("yi", 'ער איז געקומען. זי איז געגאַנגען.', 2),
    ("mr", 'डॉ. जोशी आले. ते गेले.', 2),
    ("pa", 'ਡਾ. ਸਿੰਘ ਆਏ। ਉਹ ਗਏ।', 2),
]  # fmt: skip
NEEDS_LANGUAGE = {"Karel IV. Lucemburský", "A 2. Magyar", "II. Dünya"}
"""What is an ordinal in one language, and the end of a sentence in another."""


@pytest.mark.parametrize(("language", "text", "count"), COUNTS)
def test_sentences_end_where_readers_of_the_language_end_them(
    language: str, text: str, count: int
) -> None:
    assert len(split_sentences(text, language=language).sentences) == count
    if not text.startswith(tuple(NEEDS_LANGUAGE)):
        assert len(split_sentences(text).sentences) == count


@pytest.mark.parametrize("code", ["de", "DE", "deu", "deu_Latn", "de_DE", "de-AT"])
def test_every_code_of_a_language_has_its_rules(code: str) -> None:
    assert rules_of(code) == rules_of("de")
    assert rules_of("tlh") == rules_of("ROMANCE") == rules_of(None)


IN_WORDS = set(".․﹒﹖﹗!?")
"""They end sentences before white space only."""
COMMAS = {"၊"}
TERMINALS = [
    mark
    for mark in map(chr, range(0x110000))
    if regex.match(r"\p{Sentence_Terminal}", mark) and mark not in COMMAS
]


@pytest.mark.parametrize("mark", TERMINALS, ids=[f"U+{ord(mark):04X}" for mark in TERMINALS])
def test_every_mark_of_unicode_ends_sentences(mark: str) -> None:
    for text in (
        f"Uno{mark} Dos{mark}",
        f"Uno{mark}”  Dos",
        f"Uno{mark}\u200f Dos",
        f"Uno{mark}{mark} Dos",
    ):
        paragraph = split_sentences(text)
        assert len(paragraph.sentences) == 2
        assert paragraph.join(paragraph.sentences) == text
    is_apart = len(split_sentences(f"Uno{mark}Dos").sentences) == 2
    # A fullwidth stop between Latin letters stands within a name.
    assert is_apart == (mark not in IN_WORDS | {"．"})


@pytest.mark.parametrize("break_", "\n \r \r\n \v \f \x1c \x1d \x1e \x85 \u2028 \u2029".split(" "))
def test_every_line_break_ends_a_sentence(break_: str) -> None:
    for text in (f"Sr.{break_}dos", f"uno{break_}dos", f"3.{break_}  Mai"):
        paragraph = split_sentences(text)
        assert len(paragraph.sentences) == 2
        assert paragraph.join(paragraph.sentences) == text


HOSTILE = [
    ".", ". ", "a. ", "A. ", "1. ", "z. B. ", "。", "。」", "。 ", "? ! ", ". » ", '."', "．",
    "１．", "!؟", "[1] ", ". [1]", "།  ", "«. ", "《！", "\u200b.", "… …", "x.y", "a;", "αβ; ",
    " \xa0", "\u2028 ", "- . ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE, ids=ascii)
def test_any_text_is_split_in_linear_time(piece: str) -> None:
    import time

    def seconds(characters: int) -> float:
        text = "x" + piece * (characters // len(piece)) + "x"
        started = time.process_time()
        split_sentences(text)
        return time.process_time() - started

    seconds(1000)
    assert seconds(300_000) < 40 * max(seconds(30_000), 0.005)


def parts(text: str, most: int = 12, kept: tuple[tuple[int, int], ...] = ()) -> list[str]:
    whole = split_sentences(text)
    paragraph, divided = with_parts(whole, lambda part: len(part) <= most, kept)
    assert divided == sum(one not in paragraph.sentences for one in whole.sentences)
    assert paragraph.join(paragraph.sentences) == text
    return list(paragraph.sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uno dos tres", ["uno dos tres"]),
        ("uno dos tres cuatro", ["uno dos tres", "cuatro"]),
        ("uno dos; tres, cuatro", ["uno dos;", "tres, cuatro"]),
        ("uno dos, tres cuatro", ["uno dos,", "tres cuatro"]),
        ("a, uno dos tres cuatro", ["a, uno dos", "tres cuatro"]),
        ("uno - dos tres - cuatro", ["uno -", "dos tres -", "cuatro"]),
        ("  uno. dos tres cuatro cinco\n\n", ["uno.", "dos tres", "cuatro cinco"]),
        ("uno dos   tres   cuatro", ["uno dos", "tres", "cuatro"]),
        ("abcdefghijklmnop", ["abcdefghijkl", "mnop"]),
        ("一二三四五六，七八九十一二三四", ["一二三四五六，", "七八九十一二三四"]),
        ("abcdefghijkl\u0301mnop", ["abcdefghijk", "l\u0301mnop"]),
        ("क" * 12 + "िकक", ["क" * 11, "किकक"]),
        ("क" * 11 + "्षक", ["क" * 10, "क्षक"]),
        ("aaaaaaaaaa👩\u200d👧bb", ["aaaaaaaaaa", "👩\u200d👧bb"]),
        ("ཀཁགངཀ་ཁགངཅཆཇཉཏ", ["ཀཁགངཀ་", "ཁགངཅཆཇཉཏ"]),
        ("ሀለሐመሠ፣ ረሰሸቀበተቸኀ", ["ሀለሐመሠ፣", "ረሰሸቀበተቸኀ"]),
        ("مرحبا بكم، هنا اليوم", ["مرحبا بكم،", "هنا اليوم"]),
    ],
)
def test_cuts_are_where_a_reader_pauses(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_terms_are_not_cut() -> None:
    text = "uno dos buena comida tres"
    assert parts(text) == ["uno dos", "buena comida", "tres"]
    assert parts(text, kept=((4, 13),)) == ["uno", "dos buena", "comida tres"]
    assert parts("uno. " + text, 10, ((9, 18),)) == ["uno.", "uno", "dos buena", "comida", "tres"]
    assert parts("xxxxxx{abcdefgh}yy", kept=((6, 16),)) == ["xxxxxx", "{abcdefgh}yy"]


def test_what_never_fits_is_left_as_it_is() -> None:
    assert parts("uno dos", 0) == ["u", "n", "o", "d", "o", "s"]
    assert parts("buena comida", 5, ((0, 12),))


@given(st.text(max_size=80), st.integers(1, 20))
def test_nothing_is_lost_and_every_part_fits(text: str, most: int) -> None:
    for part in parts(text, most):
        assert part.strip() == part
        assert len(part) <= most or not part.isascii()


def test_division_ends_where_there_are_enough_parts() -> None:
    read: list[int] = []

    def fits(text: str) -> bool:
        read.append(len(text))
        return len(text) <= 12

    seen: list[str] = []

    def count(part: str) -> None:
        seen.append(part)
        if len(seen) == 3:
            raise TooLong("enough")

    with pytest.raises(TooLong):
        with_parts(split_sentences("uno dos tres " * 100_000), fits, count=count)
    assert seen == ["uno dos tres"] * 3
    assert max(read[1:]) < 100  # the rest is not read again for each part
    assert len(read) < 100


spans = st.lists(st.integers(0, 60), max_size=12, unique=True).map(
    lambda places: list(zip(sorted(places)[::2], sorted(places)[1::2], strict=False))
)


@given(st.text(st.sampled_from("ab ,;.中"), max_size=60), st.integers(1, 12), spans)
def test_spans_that_are_far_away_do_not_matter(
    text: str, most: int, kept: list[tuple[int, int]]
) -> None:
    near = [span for span in kept if span[0] < len(text)]
    far = [(start + 1000, end + 1000) for start, end in kept]
    assert parts(text, most, tuple(near)) == parts(text, most, (*near, *far))


def found(text: str, glossary: dict[str, str], copied: tuple[str, ...] = ()) -> list[str]:
    terms = TermIndex(glossary, copied, ()).find(composed(text))
    return [f"{text[one.start : one.end]}>{one.rendering}" for one in terms]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("el restaurante nuevo", ["restaurante>diner"]),
        ("Restaurante. RESTAURANTE!", ["Restaurante>diner", "RESTAURANTE>diner"]),
        ("restaurantes, subrestaurante, restaurante2, restaurante_", []),
        ("¿restaurante? «restaurante» l'restaurante", ["restaurante>diner"] * 3),
        ("", []),
    ],
)
def test_words_in_lower_case_are_found_in_every_case(text: str, wanted: list[str]) -> None:
    assert found(text, {"restaurante": "diner"}) == wanted


def test_words_with_capitals_are_found_as_they_are() -> None:
    glossary = {"Apple": "Apple", "apple": "Apfel"}
    assert found("an apple by Apple, APPLE", glossary) == [
        "apple>Apfel", "Apple>Apple", "APPLE>Apfel"
    ]  # fmt: skip
    assert found("an apple", {"Apple": "x"}) == []


def test_the_longest_of_overlapping_terms_counts() -> None:
    glossary = {"New": "a", "New York": "b", "York City": "c", "city": "d"}
    assert found("New York City, New City", glossary) == ["New York>b", "City>d", "New>a", "City>d"]


def test_spaces_in_terms_and_composed_characters_make_no_difference() -> None:
    assert found("la casa blanca", {" casa  blanca ": "White  Hut"}) == ["casa blanca>White Hut"]
    assert TermIndex({"cafe\u0301": "x"}, (), ()).find("un caf\u00e9")[0].rendering == "x"


def test_copied_texts_win_and_keep_their_case() -> None:
    assert found("IBM ibm", {"ibm": "big"}, ("IBM",)) == ["IBM>IBM", "ibm>big"]
    assert found("x {name}s %s", {}, ("{name}", "%s")) == ["{name}>{name}", "%s>%s"]


def test_scripts_without_spaces_have_no_edges_of_words() -> None:
    assert found("我在餐厅吃饭", {"餐厅": "diner"}) == ["餐厅>diner"]
    assert not is_word_character("餐")
    assert joins("año", 1)
    assert not joins("año", 0)


def test_capital_letters_of_a_whole_term_are_seen() -> None:
    (term,) = TermIndex({"ok": "fine"}, (), ()).find("OK")
    assert term.is_upper
    assert not TermIndex({"OK": "fine"}, (), ()).find("OK")[0].is_upper


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("urls", "ver https://example.com/a?b=c. y www.x.org, (http://y.z)",
         ["https://example.com/a?b=c", "www.x.org", "http://y.z"]),
        ("emails", "a: jo.doe+x@mail.example.org.", ["jo.doe+x@mail.example.org"]),
        ("placeholders", "{name} {{user.id}} ${x} %s %1$s %d, %(n)s %.2f %@ 100% sure",
         ["{name}", "{{user.id}}", "${x}", "%s", "%1$s", "%d", "%(n)s", "%.2f", "%@"]),
        ("tags", "<b>a</b> &amp; <br/> 1 < 2 > 0", ["<b>", "</b>", "&amp;", "<br/>"]),
    ],
)  # fmt: skip
def test_kinds_of_text_are_found(kind: str, text: str, wanted: list[str]) -> None:
    terms = TermIndex({}, (), (kind,)).find(text)
    assert [one.rendering for one in terms] == wanted
    assert all(one.is_copied and text[one.start : one.end] == one.rendering for one in terms)


@pytest.mark.parametrize(
    "unit", ["{", "%", "<a", "www.", "a@", "&", "{{", "%(", "https://", "-a@b."]
)
def test_long_hostile_texts_are_read_in_time(unit: str) -> None:
    text = unit * (40_000 // len(unit))
    assert TermIndex({"a" * n: "x" for n in range(1, 200)}, (), PATTERNS).find(text) is not None


COPIED = {
    "urls": "https://example.org/" + "a" * 1_900,
    "emails": "a" * 64 + "@" + "b" * 63 + (".c" + "d" * 62) * 8,
    "placeholders": "{{" + "x" * 100 + "}}",
    "tags": "</a" + "b" * 500 + ">",
}
"""Kind → a text of nearly the greatest length."""


@pytest.mark.parametrize("kind", COPIED)
def test_kinds_of_text_are_found_across_the_parts_that_are_searched(kind: str) -> None:
    for before in (0, 9_950, 9_999, 10_000, 19_990, 29_000):
        text = " ".join(["," * before, *[COPIED[kind]] * 20])
        found = [(one.start, one.end) for one in TermIndex({}, (), [kind]).find(text)]
        assert found == [match.span() for match in PATTERNS[kind].finditer(text)]
        assert len(found) == 20


def test_no_search_for_a_kind_holds_the_interpreter_for_a_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    class Pattern:
        def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
            searched.append(end - start)
            return emails.search(text, start, end)

    emails = PATTERNS["emails"]
    monkeypatch.setitem(PATTERNS, "emails", Pattern())
    assert TermIndex({}, (), ["emails"]).find("가" * 100_000 + " a@b.c")[0].rendering == "a@b.c"
    assert len(searched) > 1
    assert max(searched) <= 13_000


def test_edges_of_tokens() -> None:
    class Tokenizer:
        def pieces(self, ids: object, *, of_source: bool = False) -> list[str]:
            return [" din", "er", ".", " (", "\ufffd", "", "</s>", " 中"]

    edges = WordEdges.of(Tokenizer(), 8)
    assert edges.begins.tolist() == [False, True, False, False, True, False, False, False]
    assert edges.ends.tolist() == [True, True, False, False, True, False, False, False]


@pytest.mark.parametrize("before", range(9_960, 10_005, 4))
def test_marks_are_counted_across_the_parts_that_are_searched(before: int) -> None:
    text = "\u00e9" * before + "\u0301" * 30
    assert composed(text + "a" * 20_000)
    with pytest.raises(InvalidRequest, match="combining marks"):
        composed(text + "\u0301" + "a" * 20_000)


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0344", "\u0591\u05b0"])
def test_texts_with_many_marks_in_a_row_are_refused_unread(marks: str) -> None:
    text = "a" + marks * 100
    with pytest.raises(InvalidRequest, match=r"texts\.0 has more than 30 combining marks"):
        composed(text, "texts.0")
    with pytest.raises(InvalidRequest, match="combining marks"):
        TermIndex({text: "x"}, (), ())
    assert composed("e\u0301" * 1000 + "ộ" * 1000) == "é" * 1000 + "ộ" * 1000
    assert composed("a" + "\u0301" * 30) == "á" + "\u0301" * 29


def test_comparisons_of_a_request_are_bounded() -> None:
    index = TermIndex({"a" * n: "x" for n in range(1, 200)}, (), ())
    with pytest.raises(InvalidRequest, match="more than 5000000 comparisons"):
        index.find("a " * 30_000)


@pytest.mark.parametrize("text", ["", "a", "uno dos, tres-4!", "¿qué 中文 x"])
def test_edges_of_words_are_those_of_each_place(text: str) -> None:
    assert word_edges(text) == [not joins(text, place) for place in range(len(text) + 1)]
