"""Terms that a translation must contain: as tokens that the search forces, and what stands in.

A term is forced in the tokens of the model's output vocabulary. What that vocabulary cannot write,
or only in many tokens, a given name stands in for: it replaces the term in the source, its tokens
are forced, and the term replaces it in the translation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.errors import InvalidRequest
from serving.planning.loaded_model import LoadedModel
from serving.processing.sentences import Paragraph
from serving.processing.terms import FoundTerm
from serving.processing.words import joins

Spellings = tuple[tuple[int, ...], ...]

COPIED_TOKENS = 4
"""Longer texts that are copied have a stand-in: each token of a phrase takes a share of the beam."""
_CONTEXTS = ("", "a ", "(")  # at the beginning, behind a word, behind a mark
_NAMES = """Pedro Ana Elena Maria David Daniel Martin Laura Peter Anna Sandra Robert Victor Oscar Hugo
    Nadia Irina Boris Sofia Carla Bruno Simon Monica Linda Tania Igor Ivan Paul Marc Lisa Eva Clara
    Diana Felix Gloria Julia Kevin Leon Marta Nora Omar Petra Rita Samuel Teresa Vera""".split()


@dataclass(frozen=True)
class TermedSentence:
    """A sentence with its terms.

    Attributes:
        text: As the model reads it.
        phrases: What the output contains: the spellings of each term.
        stand_ins: Stand-in → the text that it stands for.
    """

    text: str
    phrases: tuple[Spellings, ...] = ()
    stand_ins: tuple[tuple[str, str], ...] = ()

    def restored(self, output: str) -> str:
        """An output with the texts that names stand for."""
        for name, text in self.stand_ins:
            parts, place = [], 0
            for match in re.finditer(re.escape(name), output):
                if not joins(output, match.start()) and not joins(output, match.end()):
                    parts += [output[place : match.start()], text]
                    place = match.end()
            output = "".join(parts) + output[place:]
        return output


@dataclass
class TermSpeller:
    """Writes terms as tokens of one model.

    Attributes:
        model: The model.
        item: The request's field of the text, for errors.
    """

    model: LoadedModel
    item: str
    _spelled: dict[tuple[str, bool, bool], Spellings] = field(default_factory=dict)

    def sentence(self, text: str, found: Sequence[FoundTerm]) -> TermedSentence:
        """A sentence with its terms.

        Raises:
            InvalidRequest: the model can write neither a term nor anything in its place.
        """
        phrases: list[Spellings] = []
        names: dict[str, str] = {}
        parts, place = [], 0
        for term in found:
            written = text[term.start : term.end]
            spellings = self._direct(term, written)
            if not spellings:
                name = names.get(term.rendering) or self._name(text, names, term)
                names[term.rendering] = name
                spellings, written = self._spellings(name, is_copied=True), name
            parts += [text[place : term.start], written]
            place = term.end
            phrases.append(spellings)
        stand_ins = tuple((name, rendering) for rendering, name in names.items())
        return TermedSentence("".join(parts) + text[place:], tuple(phrases), stand_ins)

    def _direct(self, term: FoundTerm, written: str) -> Spellings:
        """The spellings of a term; none where something must stand in for it."""
        spellings = self._spellings(term.rendering, term.is_copied, term.is_upper)
        if term.is_copied and spellings:
            source = self.model.tokenizer.encode(written, add_special_tokens=False)
            longest = max(len(source), min(map(len, spellings)))
            spec = self.model.manifest.tokenizer
            if longest > COPIED_TOKENS or (spec is not None and spec.unk_token_id in source):
                return ()
        return spellings

    def _name(self, text: str, names: dict[str, str], term: FoundTerm) -> str:
        """A name that both vocabularies can write, and that the sentence does not contain."""
        spec = self.model.manifest.tokenizer
        unknown = None if spec is None else spec.unk_token_id
        for name in _NAMES:
            if name in names.values() or name.lower() in text.lower():
                continue
            ids = self.model.tokenizer.encode(name, add_special_tokens=False)
            if unknown not in ids and self._spellings(name, is_copied=True):
                return name
        raise InvalidRequest(
            f"{self.item}: {self.model.name} cannot write {term.rendering!r}, and no further name "
            "can stand in for it",
            field=self.item,
        )

    def _spellings(self, text: str, is_copied: bool, is_upper: bool = False) -> Spellings:
        """Token ids of a text at all places of a sentence; none if the vocabulary lacks some."""
        key = text, is_copied, is_upper
        if key not in self._spelled:
            forms = [text]
            if not is_copied and text[0].islower():
                forms.append(text[0].upper() + text[1:])
            if is_upper and text.upper() not in forms:
                forms.insert(0, text.upper())
            found = (self._ids(form, context) for form in forms for context in _CONTEXTS)
            self._spelled[key] = tuple(dict.fromkeys(ids for ids in found if ids))
        return self._spelled[key]

    def _ids(self, text: str, context: str) -> tuple[int, ...]:
        """Ids of a text behind a context; none if the ids are not those of that text."""
        tokenizer = self.model.tokenizer
        before, ids = tokenizer.encode_output(context.rstrip()), None
        if before is not None:
            ids = tokenizer.encode_output(context + text)
        if before is None or ids is None or ids[: len(before)] != before:
            return ()
        own = ids[len(before) :]
        whole = tokenizer.decode(ids).strip()
        is_same = tokenizer.decode(own).strip() == text and whole == context + text
        return tuple(own) if is_same else ()


def without_cut_terms(paragraph: Paragraph, found: Sequence[FoundTerm]) -> Paragraph:
    """The paragraph with sentences joined where a term goes on over their end."""
    sentences, gaps = [paragraph.sentences[0]], [paragraph.gaps[0]]
    end = len(gaps[0]) + len(sentences[0])
    for sentence, gap in zip(paragraph.sentences[1:], paragraph.gaps[1:-1], strict=True):
        following = end + len(gap)
        if any(term.start < end and term.end > end for term in found):
            sentences[-1] += gap + sentence
        else:
            sentences.append(sentence)
            gaps.append(gap)
        end = following + len(sentence)
    return Paragraph(tuple(sentences), (*gaps, paragraph.gaps[-1]))


def terms_of_each(
    paragraph: Paragraph, found: Sequence[FoundTerm]
) -> list[tuple[str, list[FoundTerm]]]:
    """Each sentence with its terms, whose places become those in the sentence."""
    result = []
    place = len(paragraph.gaps[0])
    for sentence, gap in zip(paragraph.sentences, paragraph.gaps[1:], strict=True):
        end = place + len(sentence)
        inside = [
            FoundTerm(
                term.start - place, term.end - place, term.rendering, term.is_copied, term.is_upper
            )
            for term in found
            if place <= term.start and term.end <= end
        ]
        result.append((sentence, inside))
        place = end + len(gap)
    return result
