"""Paragraphs to sentences and back: models translate one sentence at a time.

Everything between the sentences (spaces, line breaks, indents) is kept, so that a translated text
has the layout of the original. Splitting is rule-based: a terminator ends a sentence unless it
belongs to an abbreviation, an initial or a number; a line break always ends one. Time is linear in
the length of any text: quantifiers are possessive, lookbehind and lookahead are bounded.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

_CLOSERS = "\"'”’»)]}"
_BREAK = re.compile(
    rf"""
      # Latin scripts: a space follows.
      (?<![.!?…])(?P<mark>[.!?…]++)(?P<close>[{re.escape(_CLOSERS)}]*+)(?P<gap>\s++)
      # Chinese and Japanese: no space needed.
    | (?:[。！？｡]++[」』”’）]*+)(?P<wide_gap>\s*+)
      # A line break without a mark.
    | (?<![^\S\n\r])(?P<line>[^\S\n\r]*+[\n\r]\s*+)
    """,
    re.VERBOSE,
)
_CONTEXT = 24  # characters looked at on either side of a mark
_LAST_WORD = re.compile(r"[^\s¿¡(\[\"'“‘«]*\Z")

# Abbreviations, whose full stop ends no sentence; lower case, without the stop.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof st jr sr gen rep sen col capt lt no vs etc e.g i.e cf approx dept est fig vol
    ed eds p pp a.m p.m inc ltd co corp u.s
    sra srta srtas sres dra d dña ud uds vd vds lic ing arq gral cap cía ej p.ej pág págs núm
    tel tfno avda av c ee uu dpto art arts aprox máx mín admón
    m mme mlle mm z.b bzw usw ca nr str d.h u.a
    """.split()
)
# … those that also end sentences: they do if a capital letter follows.
_ALSO_FINAL = frozenset("etc a.m p.m inc ltd co corp u.s jr usw u.a uu".split())


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


def split_sentences(text: str, most: int | None = None) -> Paragraph:
    """A text's sentences, none of them blank; what is blank belongs to the gaps.

    Args:
        most: Sentences after which the rest of the text is one.
    """
    if is_blank(text):
        return Paragraph((), (text,))
    body = text.strip()
    lead = text[: text.index(body[0])]
    sentences, gaps, start = [], [lead], 0
    for match in _BREAK.finditer(body):
        if not _ends_sentence(body, match):
            continue
        gap = match["gap"] or match["wide_gap"] or match["line"] or ""
        if match.end() == len(body):
            break
        sentences.append(body[start : match.end() - len(gap)])
        gaps.append(gap)
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


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    gap = match["gap"]
    if gap is None or "\n" in gap or "\r" in gap:
        return True
    following = text[match.end() : match.end() + _CONTEXT].lstrip("¿¡\"'“‘«([{—-–")[:1]
    if match["mark"] == ".":
        return _stop_ends_sentence(_line_before(text, match.start()), following)
    # "¿Quién?" dijo; espera... no: after a quotation or an ellipsis a small letter continues.
    trails_off = "…" in match["mark"] or match["mark"].endswith("..")
    return not (following.islower() and (match["close"] or trails_off))


def _stop_ends_sentence(before: str, following: str) -> bool:
    found = _LAST_WORD.search(before)
    word = found.group().lower() if found else ""
    if word in _ALSO_FINAL:
        return following.isupper()
    is_initial = len(word) == 1 and word.isalpha() and before[-1:].isupper()
    return not (word in _ABBREVIATIONS or is_initial or _is_ordinal(before, word, following))


def _line_before(text: str, place: int) -> str:
    """The end of the line before a position; starts with a newline at the start of a line."""
    before = text[max(0, place - _CONTEXT) : place]
    return "\n" + before if place <= _CONTEXT else before


def _is_ordinal(before: str, word: str, following: str) -> bool:
    """`1. First point`, `am 3. mai`: the number of a list, or one followed by a small letter."""
    _, newline, indent = before[: len(before) - len(word)].rpartition("\n")
    starts_line = newline and not indent.strip()
    return word.isdecimal() and bool(starts_line or following.islower())
