"""Sentences with terms: what the model reads, and the calls that keep them.

A term is forced in tokens of the output vocabulary. A given name stands in for what a model cannot
read or write, or only in many tokens: it replaces the term in the source, and the term replaces it
in the translation.

Two searches run. One is the plain one: where its result has all terms, it stands. The other is
forced to contain them (`force_words_ids`). A model that finds a rendering plausible puts it where
it belongs; one that does not puts it anywhere, which its score shows. Then the plain result is
taken, with the rendering in place of the words that attend to the term.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest
from inference.generation import MAX_PHRASES, Finished, Overrides
from inference.processing.sentences import Paragraph
from inference.processing.terms import FoundTerm, TermIndex, joins
from inference.tasks.shared.alignment import weights_of
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import GenerateCall, Outcomes, finished_of
from inference.tasks.translation.languages import LanguageEncoding
from inference.tasks.translation.term_placement import SourceTerm, Target, contains, place_terms

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


FORCED_BEAMS = 4
"""The least beams of a search for terms: in two it finds them, but seldom in good places."""
FORCED_TERMS = 8
"""The most terms of a sentence that are searched for where they can be placed instead: each takes
time at every step, and a share of the beam."""
LARGEST_LOSS = 0.5
"""Log-probability a token that a forced output may lose against the plain one. On `example-es-en`
it loses nothing with the reference's own words, and 0.9 or more with others."""
_SPARE_TOKENS = 16


@dataclass(frozen=True)
class GlossaryCalls:
    """The calls of one sentence with terms.

    Attributes:
        sentence: The sentence.
        terms: Its terms with their source tokens.
        plain: Number of the plain call; None where the model has no alignment to place terms by.
        forced: Number of the call whose search is forced; None where the vocabulary lacks a term.
        length_penalty: Of both.
    """

    sentence: GlossarySentence
    terms: tuple[SourceTerm, ...]
    plain: int | None
    forced: int | None
    length_penalty: float

    @property
    def calls(self) -> tuple[int, ...]:
        """Numbers of the calls of this sentence."""
        return tuple(call for call in (self.plain, self.forced) if call is not None)

    def result(self, outcomes: Outcomes, model: LoadedModel) -> Finished:
        """The hypotheses, each with its text.

        Raises:
            ServingError: the calls failed.
        """
        if self.plain is None:
            assert self.forced is not None
            return self._read_forced(finished_of(outcomes[self.forced]), model)
        plain = finished_of(outcomes[self.plain])
        forced = None if self.forced is None else outcomes[self.forced]
        if isinstance(forced, Finished):
            best = model.tokenizer.decode(plain.best.token_ids)
            is_close = self._mean(forced) >= self._mean(plain) - LARGEST_LOSS
            if is_close and not contains(best, self.sentence.terms):
                return self._read_forced(forced, model)
        return self._place_terms(plain, model)

    def _mean(self, finished: Finished) -> float:
        """Log-probability a token."""
        length = len(finished.best.token_ids)
        return float(finished.best.score * length ** (self.length_penalty - 1))

    def _read_forced(self, forced: Finished, model: LoadedModel) -> Finished:
        decode = model.tokenizer.decode
        texts = [self.sentence.restored(decode(one.token_ids)) for one in forced.hypotheses]
        pieces = map(self.sentence.restored, model.tokenizer.pieces(forced.best.token_ids))
        return forced.with_texts(texts, pieces, forced.best.alignment)

    def _place_terms(self, plain: Finished, model: LoadedModel) -> Finished:
        targets: list[Target] = []
        for one in plain.hypotheses:
            weights = weights_of(one.alignment, rows=len(one.token_ids))
            targets.append(place_terms(one.token_ids, weights, self.terms, model.tokenizer))
        texts = [self.sentence.restored(target.text) for target in targets]
        pieces = map(self.sentence.restored, targets[0].pieces)
        return plain.with_texts(texts, pieces, targets[0].weights)


def with_terms(
    sentence: GlossarySentence,
    ids: list[int],
    options: Overrides,
    direction: LanguageEncoding,
    model: LoadedModel,
    calls: list[GenerateCall],
) -> GlossaryCalls:
    """Adds the calls of a sentence to `calls`.

    Args:
        options: Of a plain call.
        calls: All calls of the request.

    Raises:
        InvalidRequest: too many terms for the search alone.
    """
    inputs = {SOURCE_IDS: np.array(ids, dtype=np.int64)}
    is_aligned = aligns(model)
    plain = forced = None
    if is_aligned:
        plain = len(calls)
        aligned = options.model_copy(update={"return_alignment": True})
        calls.append(model.generate_call(inputs, aligned))
    if not is_aligned or (all(sentence.phrases) and len(sentence.phrases) <= FORCED_TERMS):
        forced = len(calls)
        calls.append(
            model.generate_call(inputs, _force_options(sentence, len(ids), options, model))
        )
    penalty = options.length_penalty
    return GlossaryCalls(
        sentence,
        _source_terms(sentence, ids, direction, model),
        plain,
        forced,
        model.generation.length_penalty if penalty is None else penalty,
    )


def aligns(model: LoadedModel) -> bool:
    """Whether a model returns its attention to source tokens."""
    spec = model.manifest.alignment
    return spec is not None and spec.over == "tokens"


def _force_options(
    sentence: GlossarySentence, source: int, options: Overrides, model: LoadedModel
) -> Overrides:
    """Options of the forced search; it has no more tokens than a translation may need.

    Raises:
        InvalidRequest: too many terms.
    """
    if len(sentence.phrases) > MAX_PHRASES:
        raise InvalidRequest(
            f"a sentence has {len(sentence.phrases)} terms, at most {MAX_PHRASES} are searched for",
            field="glossary",
        )
    needed = sum(min(map(len, spellings)) for spellings in sentence.phrases)
    most = min(model.generation.max_new_tokens, 2 * source + needed + _SPARE_TOKENS)
    return Overrides.model_validate(
        {
            **options.model_dump(exclude_none=True),
            "num_beams": max(options.num_beams or 1, FORCED_BEAMS),
            "max_new_tokens": most,
            "force_words_ids": sentence.phrases,
        }
    )


def _source_terms(
    sentence: GlossarySentence, ids: list[int], direction: LanguageEncoding, model: LoadedModel
) -> tuple[SourceTerm, ...]:
    """The terms with their source tokens, counted in the beginnings of the sentence."""

    def count(text: str) -> int:
        return len(model.tokenizer.encode(direction.words + text, add_special_tokens=False))

    own = model.tokenizer.encode(direction.words + sentence.text, add_special_tokens=False)
    starts = range(len(ids) - len(own) + 1)
    offset = next((start for start in starts if ids[start : start + len(own)] == own), 0)
    found = []
    for term in sentence.terms:
        start = count(sentence.text[: term.start].rstrip())
        end = max(start + 1, count(sentence.text[: term.end]))
        found.append(SourceTerm(term, offset + start, offset + end))
    return tuple(found)
