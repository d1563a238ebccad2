"""Sentences with terms: what the model reads, and what its output must contain.

A term is forced in tokens of the output vocabulary. A given name stands in for what a model cannot
read or write, or only in many tokens: it replaces the term in the source, and the term replaces it
in the translation.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.errors import InvalidRequest
from inference.processing.sentences import Paragraph
from inference.processing.terms import FoundTerm, TermIndex
from inference.processing.words import joins
from inference.tasks.shared.loaded_model import LoadedModel

Spellings = tuple[tuple[int, ...], ...]

COPIED_TOKENS = 4
"""Longer texts that are copied have a stand-in: names are moved as one."""
_CONTEXTS = ("", "a ", "(")  # at the beginning, behind a word, behind a mark
_NAMES = """
    Pedro Ana Elena Maria David Daniel Martin Laura Peter Anna Sandra Robert Victor Oscar Hugo Nadia
    Irina Boris Sofia Carla Bruno Simon Monica Linda Tania Igor Ivan Paul Marc Lisa Eva Clara Diana
    Felix Gloria Julia Kevin Leon Marta Nora Omar Petra Rita Samuel Teresa Vera
""".split()


@dataclass(frozen=True)
class GlossarySentence:
    """A sentence with its terms.

    Attributes:
        text: As the model reads it.
        terms: At their places in `text`; the rendering of a stand-in is the name itself.
        phrases: Of each term its spellings in tokens; none where the vocabulary lacks some.
        stand_ins: (name, text that it stands for).
    """

    text: str
    terms: tuple[FoundTerm, ...] = ()
    phrases: tuple[Spellings, ...] = ()
    stand_ins: tuple[tuple[str, str], ...] = ()

    @property
    def is_spelled(self) -> bool:
        """Whether every term can be forced."""
        return all(self.phrases)

    def restored(self, output: str) -> str:
        """An output with the texts that names stand for."""
        texts = dict(self.stand_ins)
        if not texts:
            return output
        parts, place = [], 0
        for match in re.finditer("|".join(map(re.escape, texts)), output):
            if not joins(output, match.start()) and not joins(output, match.end()):
                parts += [output[place : match.start()], texts[match.group()]]
                place = match.end()
        return "".join(parts) + output[place:]


@dataclass
class TermSpeller:
    """Writes the terms of a request for one model.

    Attributes:
        model: The model.
        is_aligned: Whether terms that it cannot write find their places without being forced.
        index: Finds the terms.
    """

    model: LoadedModel
    is_aligned: bool
    index: TermIndex
    _spelled: dict[tuple[str, bool, bool], Spellings] = field(default_factory=dict)

    def sentence(self, text: str, found: Sequence[FoundTerm], item: str) -> GlossarySentence:
        """A sentence with its terms.

        Args:
            item: The request's field of the text, for errors.

        Raises:
            InvalidRequest: the model can write neither a term nor a name in its place.
        """
        terms: list[FoundTerm] = []
        names: dict[str, str] = {}
        made, place = "", 0
        for term in found:
            written = text[term.start : term.end]
            spellings = self._spellings(term.rendering, term.is_copied, term.is_upper)
            rendering = term.rendering
            is_lost = not spellings and not self.is_aligned
            if is_lost or (term.is_copied and not self._reads(written)):
                name = names.get(rendering) or self._name(text, names)
                if name is not None:
                    names[rendering] = written = rendering = name
                elif is_lost:
                    raise InvalidRequest(
                        f"{item}: {self.model.name} cannot write {rendering!r}, and no further "
                        "name can stand in for it: require less",
                        field=item,
                    )
            made += text[place : term.start]
            start, place = len(made), term.end
            made += written
            is_copied = term.is_copied or rendering is not term.rendering
            terms.append(
                replace(term, start=start, end=len(made), rendering=rendering, is_copied=is_copied)
            )
        phrases = (self._spellings(one.rendering, one.is_copied, one.is_upper) for one in terms)
        stand_ins = tuple((name, rendering) for rendering, name in names.items())
        return GlossarySentence(made + text[place:], tuple(terms), tuple(phrases), stand_ins)

    def _reads(self, text: str) -> bool:
        """Whether the source vocabulary has a text, in few tokens."""
        try:
            ids = self.model.tokenizer.encode(text, add_special_tokens=False)
        except InvalidRequest:  # a token without an embedding
            return False
        return len(ids) <= COPIED_TOKENS and self._unknown not in ids

    @property
    def _unknown(self) -> int | None:
        spec = self.model.manifest.tokenizer
        return None if spec is None else spec.unk_token_id

    def _name(self, text: str, names: dict[str, str]) -> str | None:
        """A name that the model reads and writes, and that the sentence does not contain."""
        lowered, taken = text.lower(), names.values()
        free = (name for name in _NAMES if name not in taken and name.lower() not in lowered)
        written = (name for name in free if self._reads(name))
        return next((name for name in written if self._spellings(name, is_copied=True)), None)

    def _spellings(self, text: str, is_copied: bool, is_upper: bool = False) -> Spellings:
        """Token ids of a text at all places of a sentence; none if the vocabulary lacks some."""
        key = text, is_copied, is_upper
        if key not in self._spelled:
            forms = [text]
            if not is_copied and text[0].islower():
                forms.append(text[0].upper() + text[1:])
            if is_upper:
                forms = [text.upper(), *forms]
            found = (self._ids(form, context) for form in forms for context in _CONTEXTS)
            self._spelled[key] = tuple(dict.fromkeys(ids for ids in found if ids))
        return self._spelled[key]

    def _ids(self, text: str, context: str) -> tuple[int, ...]:
        """Ids of a text behind a context; none if they are not exactly of that text."""
        tokenizer = self.model.tokenizer
        before, ids = tokenizer.encode_output(context.rstrip()), None
        if before is not None:
            ids = tokenizer.encode_output(context + text)
        if before is None or ids is None or ids[: len(before)] != before:
            return ()
        own = ids[len(before) :]
        is_same = tokenizer.decode(own).strip() == text
        return tuple(own) if is_same and tokenizer.decode(ids).strip() == context + text else ()


def without_cut_terms(paragraph: Paragraph, found: Sequence[FoundTerm]) -> Paragraph:
    """The paragraph with sentences joined where a term goes on over their end.

    Args:
        found: In order; none overlaps another.
    """
    starts = [term.start for term in found]
    sentences, gaps = list(paragraph.sentences[:1]), list(paragraph.gaps[:1])
    end = sum(map(len, (*gaps, *sentences)))
    for sentence, gap in zip(paragraph.sentences[1:], paragraph.gaps[1:-1], strict=True):
        before = bisect_left(starts, end)
        if before and end < found[before - 1].end:
            sentences[-1] += gap + sentence
        else:
            sentences.append(sentence)
            gaps.append(gap)
        end += len(gap) + len(sentence)
    return Paragraph(tuple(sentences), (*gaps, paragraph.gaps[-1]))


def terms_of_each(paragraph: Paragraph, found: Sequence[FoundTerm]) -> list[list[FoundTerm]]:
    """The terms of each sentence, at their places in it.

    Args:
        found: In order; none overlaps another, or the end of a sentence.
    """
    starts = [term.start for term in found]
    result, place = [], len(paragraph.gaps[0])
    for sentence, gap in zip(paragraph.sentences, paragraph.gaps[1:], strict=True):
        end = place + len(sentence)
        reached = found[bisect_left(starts, place) : bisect_left(starts, end)]
        inside = [term for term in reached if term.end <= end]
        result.append(
            [replace(one, start=one.start - place, end=one.end - place) for one in inside]
        )
        place = end + len(gap)
    return result
