"""A translator's texts as source sentences: language prefixes, terms, tokens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.errors import InvalidRequest, TooLong
from inference.processing.cancellation import check_abandoned
from inference.processing.sentences import Fits, Paragraph, split_sentences, with_parts
from inference.processing.terms import FoundTerm, composed
from inference.tasks.shared.loaded_model import LoadedModel, check_characters, naming
from inference.tasks.translation.languages import LanguageEncoding, target_prefixes
from inference.tasks.translation.sentence_terms import (
    GlossarySentence,
    TermSpeller,
    terms_of_each,
    without_cut_terms,
)

PART = 0.5
"""Length of the parts of a sentence that is too long, in lengths that the model takes: near those
its translations are worse, and may be cut."""
_SPARE_TOKENS = 8
_PREFIX = re.compile(r"\s*(>>[^<\s]*<<)\s*")


@dataclass(frozen=True)
class MostTokens:
    """The length of a sentence that a model takes, read in one direction."""

    direction: LanguageEncoding
    model: LoadedModel

    def fits(self, share: float) -> Fits:
        """Whether a text has at most this share of the tokens."""
        direction, model = self.direction, self.model
        most = model.manifest.limits.max_input_tokens
        if most is None:
            return lambda text: True
        room = int(most * share) - len(direction.before) - len(direction.behind)

        def fits(text: str) -> bool:
            check_abandoned()
            read = direction.words + text
            if len(read) <= room and _most_tokens(read) <= room:
                return True
            if len(read) > model.longest_text:
                return False
            ids = model.tokenizer.encode(read, add_special_tokens=not direction.has_own_tokens)
            return len(ids) <= room

        return fits

    def count(self, field: str) -> Callable[[str], None]:
        """Counts the tokens of the parts of a text; raises TooLong behind those of one text."""
        total = 0

        def add(part: str) -> None:
            nonlocal total
            total += len(self.model.tokenizer.encode(part, add_special_tokens=False))
            check_tokens(total, field, self.model)

        return add


@dataclass(frozen=True)
class SourceText:
    """A text of a request.

    Attributes:
        text: The text.
        field: The request's field of it, for errors.
        language: Its code, if it is known.
    """

    text: str
    field: str
    language: str | None = None


def divide(
    source: SourceText,
    speller: TermSpeller | None,
    model: LoadedModel,
    most: MostTokens | None = None,
) -> tuple[Paragraph, list[GlossarySentence], int]:
    """The paragraph, its sentences with their terms, and how many sentences are now in parts.

    Args:
        source: The text.
        speller: Of a request with terms: finds and writes them.
        model: The model.
        most: The tokens that a sentence may have; longer ones are divided.

    Raises:
        InvalidRequest: nothing to translate, or a term that the model cannot write.
        TooLong: more than a text may have, whatever its tokens are.
    """
    text, field = source.text, source.field
    check_characters(len(text), field, model.task_limits.max_input_tokens)
    text = text if speller is None else composed(text, field)
    paragraph = split_sentences(text, model.task_limits.max_input_tokens, source.language)
    check_tokens(len(paragraph.sentences), field, model)  # each has at least one
    if not paragraph.sentences:
        raise InvalidRequest(f"{field} is empty: there is nothing to translate", field=field)
    found: list[FoundTerm] = []
    if speller is not None:
        found = speller.index.find(text)
        check_tokens(len(found), field, model)
        paragraph = without_cut_terms(paragraph, found)
    parted = 0
    if most is not None:
        kept = [(term.start, term.end) for term in found]
        fits, count = (most.fits(1.0), most.fits(PART)), most.count(field)
        with naming(field):
            paragraph, parted = with_parts(paragraph, fits[0], kept, fits[1], count)
    if speller is None:
        termed = [GlossarySentence(sentence) for sentence in paragraph.sentences]
        return paragraph, termed, parted
    each = zip(paragraph.sentences, terms_of_each(paragraph, found), strict=True)
    termed = [speller.sentence(sentence, terms, field) for sentence, terms in each]
    return paragraph, termed, parted


def encoded_sentences(
    sentences: Sequence[str], direction: LanguageEncoding, field: str, model: LoadedModel
) -> list[list[int]]:
    """The ids of a text's sentences.

    Raises:
        InvalidRequest: no target language where the model needs one.
        TooLong: a sentence is longer than the model takes, or the text than the gateway takes.
    """
    if target_prefixes(model) and not direction.words:
        raise InvalidRequest(
            f"{model.name} translates into several languages: give target", field="target"
        )
    ids: list[list[int]] = []
    total = 0
    for sentence in sentences:
        own = model.encode(direction.words + sentence, field, special=not direction.has_own_tokens)
        ids.append([*direction.before, *own, *direction.behind])
        model.check_length(len(ids[-1]), field, what=f" (sentence {len(ids)})")
        total += len(ids[-1])
        check_tokens(
            total,
            field,
            model,
            f" ({total} in its first {len(ids)} of {len(sentences)} sentences)",
        )
    return ids


def check_tokens(least: int, field: str, model: LoadedModel, what: str = "") -> None:
    """Raises TooLong for a text with more tokens than the gateway takes.

    Args:
        least: Tokens that it has at least.
        field: The request's field of the text.
        what: How they were counted, for the error.
    """
    most = model.task_limits.max_input_tokens
    if least > most:
        raise TooLong(
            f"{field} has more than {most} tokens{what}: split it into several texts",
            field=field,
        )


def _most_tokens(text: str) -> int:
    """More tokens than a text can have: each holds a byte of its normal form, or is a space."""
    return len(unicodedata.normalize("NFKC", text).encode(errors="replace")) + _SPARE_TOKENS


def split_target_prefix(
    text: str, direction: LanguageEncoding, model: LoadedModel
) -> tuple[LanguageEncoding, str]:
    """(direction, rest): a `>>xx<<` at the beginning of the text is for all its sentences."""
    found = _PREFIX.match(text)
    if found and found.group(1) in target_prefixes(model):
        return LanguageEncoding(words=f"{found.group(1)} "), text[found.end() :]
    return direction, text
