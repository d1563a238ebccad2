"""Paragraphs to sentences and back: models translate one sentence at a time.

Everything between the sentences (spaces, line breaks, indents) is kept, so that a translated text
has the layout of the original. Marks that end sentences are those of Unicode (UAX 29, property
Sentence_Terminal) and a few that languages use so; a full stop ends a sentence unless it belongs to
an abbreviation, an initial or a number; a line break always ends one. Time is linear in the length
of any text: quantifiers are possessive, lookbehind and lookahead are bounded.

Sentences that are longer than a model takes are cut to parts that fit (`with_parts`). A part ends
at a clause if one ends in its second half, else at white space, else anywhere. Parts are translated
like sentences, so the cut costs the model its view of the other parts only. That costs agreement
and word order, so it is done where a request says so, or where a client has no sentence to shorten,
as with a file.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from inference.processing.abbreviations import Abbreviation, LanguageRules, rules_of

_LINES = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_INVISIBLE = r"\ufe0e\ufe0f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
_SPACED = r".!?…\u2024\ufe52\ufe56\ufe57\u037e"
"""Marks that end a sentence only before white space: they also stand within words."""
TERMINATORS = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104b\u1362"
    r"\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f"
    r"\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d\u2047-\u2049"
    r"\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876"
    r"\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\uff01"
    r"\uff0e\uff1f\uff61\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047"
    r"\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de"
    r"\U000111df\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5\U0001144b"
    r"\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e"
    r"\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7"
    r"\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44"
    r"\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
"""Other marks, which need no space behind them. Burmese U+104A separates phrases: it is none."""
_ALSO_TERMINATORS = r"\u0f0d-\u0f12\u0f14\u0df4"
"""Tibetan shads, and Sinhala's kunddaliya: more of them, which Unicode does not count."""
_QUOTES = r"\"'”’»›)\]}」』）】〉》〕］｝｣＂＇"
_CLOSERS = rf"{_QUOTES}“‘‹«*_`{_INVISIBLE}"
_OPENERS = "¿¡\"'“‘„‚«‹»›([{「『（【〈《〔［｛｢*_`ʻʼ’\u200e\u200f\u2066\u2067\u2068\ufeff"
_JOINED = r"\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7a3"
"""Letters of Chinese, Japanese and Korean: no space need follow a mark between two."""
_GREEK, _ETHIOPIC, _ARMENIAN = r"\u0370-\u03ff\u1f00-\u1fff", r"\u1200-\u135a", r"\u0561-\u0587"
_ALL = TERMINATORS + _ALSO_TERMINATORS
_BMP = TERMINATORS.partition(r"\U")[0] + _ALSO_TERMINATORS
_BREAK = re.compile(
    # One character class comes first: `re` skips to it. It has no ranges behind U+FFFF but one,
    # since those are compared one after another.
    rf"""
    [{_BMP}{_SPACED};:\u1361{_LINES}\U00010a56-\U0001da88]
    (?:
      (?P<stop>(?<=[{_ALL}])|(?<=[{_ETHIOPIC}]:):|(?<=\u1361)\u1361)
      [{_ALL}{_SPACED}]*+(?:[ \xa0]{{1,2}}[{_ALL}]++)*+
      (?P<stop_close>[{_QUOTES}{_INVISIBLE}]*+)(?P<stop_gap>\s*+)
    | (?P<mark>(?:(?<=[{_SPACED}])|(?<=[{_GREEK}]{{2}};)|(?<=[{_ARMENIAN}]:))
        (?<![{_SPACED}].)(?<![{_SPACED}][ \xa0\u202f].)[{_SPACED}]*+(?![{_BMP}])
        (?:[ \xa0\u202f][{_SPACED}]++(?=[\s{_CLOSERS}]|\Z))*+)
      # A closing mark may stand behind a space, as in French; references follow: `end.[1] Next`.
      (?P<close>(?:[{_CLOSERS}]++|[ ]?\[\d{{1,3}}\](?=[\s\[])|[ \xa0\u202f][»”)](?=\s))*+)
      (?:(?P<gap>\s++)|(?<=[{_JOINED}][{_SPACED}])(?=[{_JOINED}]))
    # A line break without a mark.
    | (?<=[{_LINES}])(?P<line>\s*+)
    )
    """,
    re.VERBOSE,
)
_CONTEXT = 24
"""Characters looked at on either side of a mark."""
_LINE = re.compile(f"[{_LINES}]")
_OPENING = f"[{re.escape(_OPENERS)}]*+"
_NEXT = re.compile(
    rf"{_OPENING}(?P<dash>[-–—]++[ \xa0]?)?{_OPENING}(?P<word>[^\W\d_]*)(?P<stop>\.?)"
)
_NUMBER = re.compile(r"\d|[IVXLC]+\b")
_ROMAN = re.compile(r"[IVXLC]+")
_STOPS = frozenset(".\u2024\ufe52")
_WIDE_NAME = re.compile("[A-Za-z0-9Ａ-Ｚａ-ｚ０-９].[A-Za-zＡ-Ｚａ-ｚ]")
_LABEL = re.compile(r"[\W_]{0,4}(?:(?:\d{1,4}\.){0,4}\d{1,4}|[ivx]{1,5}|(?P<letter>[A-Za-z]))")
_LISTED = re.compile(r"[\W_]{0,4}\d{1,2}[.)]{1,2}\s")
_SHORTS = re.compile(r"(?:\w{1,4}\.){1,3}\w{1,4}")
_APOSTROPHE = re.compile("['’]")
_DATE = re.compile(r"\d{1,2}\.")
_QUOTED = re.compile(  # Words that follow a quotation without a space, and name the speaker.
    "と(?!ても|ころ|にかく|りあえず)|って|という|は(?!い)|が[^、]|を|の|に(?!わ)|も(?!う|し|ち)|など|"
    "[^，。！？、\\s]{0,6}[说說问問道喊叫答笑]"
)
_VOWEL = re.compile("[aeiouyаеиоуыэюяєіїαεηιουω]")
_SHORT = 4
"""Letters of words whose stop ends no sentence before a small letter."""


# Spaces and line breaks, controls, and characters without a width: joiners, marks of direction.
_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf")
_PLANES = (range(0x20000), range(0xE0000, 0xE0080))  # beyond them there are none
_UNSEEN = "".join(c for c in map(chr, chain(*_PLANES)) if unicodedata.category(c) in _CATEGORIES)
_SEEN = re.compile(f"[^{re.escape(_UNSEEN)}]")


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: white space and characters that are not seen."""
    return _SEEN.search(text) is None


@dataclass(frozen=True)
class Paragraph:
    """A text as its sentences and the text between them.

    `gaps` is one longer than `sentences`: before the first, between each two, after the last.
    """

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    def join(self, sentences: Sequence[str]) -> str:
        """The paragraph with its sentences replaced."""
        if len(sentences) != len(self.sentences):
            raise ValueError(f"expected {len(self.sentences)} sentences, got {len(sentences)}")
        pieces = [self.gaps[0]]
        for sentence, gap in zip(sentences, self.gaps[1:], strict=True):
            pieces += (sentence, gap)
        return "".join(pieces)


def split_sentences(text: str, most: int | None = None, language: str | None = None) -> Paragraph:
    """A text's sentences, none of them blank; what is blank belongs to the gaps.

    Args:
        text: The text.
        most: Sentences after which the rest of the text is one.
        language: Its ISO code or a model's own, e.g. `deu_Latn`; None where it is unknown.
    """
    if is_blank(text):
        return Paragraph((), (text,))
    body = text.strip()
    lead = text[: text.index(body[0])]
    rules = rules_of(language)
    sentences, gaps, start = [], [lead], 0
    for match in _BREAK.finditer(body):
        if match.end() == len(body):
            break
        if not _ends_sentence(body, match, start, rules):
            continue
        if match["line"] is None:
            end = match.end() - len(match["gap"] or match["stop_gap"] or "")
        else:
            end = start + len(body[start : match.start()].rstrip())
        sentences.append(body[start:end])
        gaps.append(body[end : match.end()])
        start = match.end()
        if len(sentences) == most:
            break
    sentences.append(body[start:])
    gaps.append(text[len(lead) + len(body) :])
    kept: list[str] = []
    between = [gaps[:1]]
    for sentence, gap in zip(sentences, gaps[1:], strict=True):
        if is_blank(sentence):
            between[-1] += (sentence, gap)
        else:
            kept.append(sentence)
            between.append([gap])
    return Paragraph(tuple(kept), tuple(map("".join, between)))


def _ends_sentence(text: str, match: re.Match[str], start: int, rules: LanguageRules) -> bool:
    """Whether a match ends the sentence that begins at `start`."""
    if match["mark"] is None:
        return match["stop"] is None or _terminator_ends(text, match, start)
    mark = text[match.start() : match.end("mark")]
    if match["gap"] and _LINE.search(match["gap"]):
        return True
    following = _NEXT.match(text, match.end())
    assert following is not None
    letter = text[following.start("word") : following.start("word") + 1]
    is_small = _is_small(letter)
    if not letter or letter in ",;:" or (is_small and following["dash"]):
        return False  # closing marks alone, or who speaks: – Qui ? – demanda-t-il
    if mark in _STOPS:
        if is_small and match["close"] and _begins_capital(text, start):
            return False
        return _Stop(text, start, match.start(), following, rules).ends_sentence()
    dots = "…" in mark or mark.endswith(("..", " ."))
    if dots and match["close"] and text[match.start() - 1] in "[(":
        return False  # something was left out: [...]
    # "¿Quién?" dijo; espera... no: after a quotation or an ellipsis a small letter continues.
    return not (is_small and (match["close"] or dots))


def _terminator_ends(text: str, match: re.Match[str], start: int) -> bool:
    """Whether a mark that needs no space ends a sentence."""
    place, end = match.start(), match.end()
    if match["stop_gap"]:
        is_label = text[start:place].isdecimal() and not _LINE.search(match["stop_gap"])
        return not is_label
    if _is_in_title(text, place, end):
        return False
    if text[place] == "．":
        is_name = _WIDE_NAME.fullmatch(text[place - 1 : end + 1])
        return not (text[end].isdecimal() or is_name)
    if text[place] == "។" and text.startswith("ល។", end):
        return False  # Khmer et cetera
    return not (match["stop_close"] and _QUOTED.match(text, end))


def _is_in_title(text: str, place: int, end: int) -> bool:
    """Whether a mark is within a short title: 《…！…》."""
    opened = text.rfind("《", max(0, place - _CONTEXT), place)
    return (
        opened >= 0
        and text.find("》", opened, place) < 0
        and text.find("》", end, end + _CONTEXT) >= 0
    )


@dataclass(slots=True)
class _Stop:
    """A full stop.

    Attributes:
        text: The text.
        start: Where the sentence begins.
        place: Where the stop is.
        following: What follows.
        rules: Of the language.
    """

    text: str
    start: int
    place: int
    following: re.Match[str]
    rules: LanguageRules

    def ends_sentence(self) -> bool:
        text = self.text
        before = text[max(self.start, self.place - _CONTEXT) : self.place]
        tokens = before.split()
        if not tokens or before[-1].isspace():
            return True
        word, next_place = tokens[-1].lstrip(_OPENERS), self.following.start("word")
        is_small = _is_small(text[next_place])
        is_first = len(tokens) == 1 and self.place - self.start <= _CONTEXT
        label = _LABEL.fullmatch(text, self.start, self.place) if is_first else None
        if label and not (is_small and label["letter"]):
            return False
        if self.following["stop"] and self.rules.kind(f"{word}.{self.following['word']}"):
            return False
        kind = self._kind(word, tokens)
        if kind is Abbreviation.NUMBERED and not _NUMBER.match(text, next_place):
            kind = None
        if kind is Abbreviation.FINAL:
            return text[next_place].isalpha() and not is_small
        if kind is not None:
            return False
        if is_small:
            return not self._is_short(word)
        if all(map(_is_letter, word.replace("-", "").split("."))):
            return self._next_word in self.rules.starters
        if word.isdecimal():
            return self._number_ends(word, tokens)
        return not (self._may_be_ordinal and _ROMAN.fullmatch(word))

    @property
    def _next_word(self) -> str:
        """The capitalised word that follows; empty where that is an abbreviation or none."""
        return "" if self.following["stop"] else self.following["word"]

    @property
    def _may_be_ordinal(self) -> bool:
        has_word = bool(self._next_word) and self._next_word not in self.rules.starters
        return self.rules.has_ordinals and has_word

    def _is_short(self, word: str) -> bool:
        """Whether a word before a small letter is like an abbreviation."""
        if word.isdecimal() or _ROMAN.fullmatch(word) or _SHORTS.fullmatch(word):
            return True
        is_short = len(word) <= _SHORT or not _VOWEL.search(word.lower())
        return is_short and _begins_capital(self.text, self.start)

    def _number_ends(self, number: str, tokens: Sequence[str]) -> bool:
        before = tokens[-2] if len(tokens) > 1 else ""
        if len(number) > len("31"):
            return True
        if before.endswith(":") or _LISTED.match(self.text, self.start):
            return False  # We need: 1. bread 2. milk
        next_place = self.following.start("word")
        if self.text[next_place].isdecimal():
            return not (_DATE.match(self.text, next_place) or _DATE.fullmatch(before))
        return not (self._next_word in self.rules.months or self._may_be_ordinal)

    def _kind(self, word: str, tokens: Sequence[str]) -> Abbreviation | None:
        """What kind of abbreviation a word is, with the short ones before it: `z. B`."""
        kind, parts = self.rules.kind, word
        found = kind(word)
        if found is None and ("'" in word or "’" in word):  # l'avv. Neri
            found = kind(_APOSTROPHE.split(word)[-1])
        for token in tokens[-2:-5:-1]:
            if len(token) > _SHORT + 1 or not token.endswith("."):
                break
            parts = token.lstrip(_OPENERS) + parts
            found = kind(parts) or found
        if found is None and word.endswith("str"):  # Hauptstr. 5
            return Abbreviation.NUMBERED
        if found is Abbreviation.MEASURE:
            is_measured = len(tokens) > 1 and tokens[-2][-1:].isdecimal()
            return Abbreviation.FINAL if is_measured else Abbreviation.INSIDE
        return found


def _is_letter(part: str) -> bool:
    """Whether a text is one letter with its marks; of Chinese, Japanese and Korean none is."""
    return (
        part[:1].isalpha()
        and all(unicodedata.category(mark).startswith("M") for mark in part[1:])
        and unicodedata.east_asian_width(part[0]) != "W"
    )


def _is_small(letter: str) -> bool:
    """Whether a letter is small, in a script that has capitals at the beginning of sentences."""
    return letter.islower() and not "\u10d0" <= letter <= "\u10ff"


def _begins_capital(text: str, start: int) -> bool:
    """Whether the first letter of a sentence is a capital: then those of others are, too."""
    return next(filter(str.isalpha, text[start : start + _CONTEXT]), "").isupper()


_FIRST_READ = 64  # characters
Fits = Callable[[str], bool]
Span = tuple[int, int]

_CLAUSES = (
    re.compile(r"[;:·؛]\s+|[；：፤፥።᠂]\s*|\s+[—–-]\s+"),
    re.compile(r"[,،‚՝]\s+|[，、､፣၊߸᠈]\s*"),
)
_SPACES = re.compile("\\s+|[\u200b\u0f0b\u1361]")
"""White space, and marks that stand between words: zero-width space, Tibetan tsheg, Ethiopic."""
_VIRAMAS = frozenset(
    "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca\u17d2\u1039\u200d"
)
"""What joins the letter behind it to the one before."""


def with_parts(
    paragraph: Paragraph,
    fits: Fits,
    kept: Iterable[Span] = (),
    part_fits: Fits | None = None,
    count: Callable[[str], None] = lambda part: None,
) -> tuple[Paragraph, int]:
    """The paragraph with parts in place of the sentences that do not fit, and how many these were.

    Args:
        paragraph: A text as its sentences.
        fits: Whether a sentence is short enough.
        kept: Places (first character, behind the last) that are not cut, in order; none overlaps
            another.
        part_fits: Whether a part is short enough, if that is less.
        count: Called with each part; raises where there are enough.
    """
    spans = list(kept)
    sentences, gaps = [], [paragraph.gaps[0]]
    place, divided = len(paragraph.gaps[0]), 0
    for sentence, gap in zip(paragraph.sentences, paragraph.gaps[1:], strict=True):
        inside = _within(spans, place, place + len(sentence))
        whole = [(sentence, "")]
        parts = whole if fits(sentence) else _parts(sentence, part_fits or fits, inside, count)
        divided += len(parts) > 1
        for part, between in parts:
            sentences.append(part)
            gaps.append(between)
        gaps[-1] += gap
        place += len(sentence) + len(gap)
    return Paragraph(tuple(sentences), tuple(gaps)), divided


def _within(spans: Sequence[Span], first: int, last: int) -> list[Span]:
    """The spans that reach into a part of a text, at their places in it."""
    begin = bisect_right(spans, first, key=lambda span: span[1])
    end = bisect_left(spans, last, key=lambda span: span[0])
    return [(start - first, stop - first) for start, stop in spans[begin:end]]


def _parts(
    sentence: str, fits: Fits, kept: Sequence[Span], count: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Each part and the white space behind it."""
    parts, begin = [], 0
    while (most := _longest(rest := sentence[begin:], fits)) < len(rest):
        end = _cut(rest, most, _within(kept, begin, begin + most + 2))
        if end >= len(rest):
            break
        part = rest[:end].rstrip()
        following = end + len(rest[end:]) - len(rest[end:].lstrip())
        if not part or following >= len(rest):
            break
        count(part)
        parts.append((part, rest[len(part) : following]))
        begin += following
    return [*parts, (rest, "")]


def _longest(text: str, fits: Fits) -> int:
    """Characters of the longest beginning that fits; at least one. Reads about twice as many."""
    low, high = 1, min(_FIRST_READ, len(text))
    while fits(text[:high]):
        if high == len(text):
            return high
        low, high = high, min(2 * high, len(text))
    high -= 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, most: int, kept: Sequence[Span]) -> int:
    """The best place to cut at, at most `most` characters from the beginning."""

    def is_free(end: int) -> bool:
        return not any(start < end < stop for start, stop in kept)

    for pattern, least in (*((clause, most // 2) for clause in _CLAUSES), (_SPACES, 1)):
        ends = [match.end() for match in pattern.finditer(text, 0, most + 1)]
        good = (end for end in ends[::-1] if least <= end and is_free(end))
        if (last := next(good, None)) is not None:
            return last
    for start, end in kept:
        if 0 < start < most < end:
            return start
    while most > 1 and _is_joined(text, most):
        most -= 1
    return most


def _is_joined(text: str, place: int) -> bool:
    """Whether a text must not be cut at a place: marks belong to the letter before them."""
    letter = text[place]
    return (
        letter == "\u200d"
        or unicodedata.category(letter).startswith("M")
        or text[place - 1] in _VIRAMAS
    )
