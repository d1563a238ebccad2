"""Translations with terms: the calls of a sentence, and which of their results is taken.

Two searches run. One is the plain one: where its result has all terms, it stands. The other is
forced to contain them (`force_words_ids`). A model that finds a rendering plausible puts it where
it belongs; one that does not puts it anywhere, which its score shows. Then the plain result is
taken, with the rendering in place of the words that attend to the term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest
from inference.generation import MAX_PHRASES, Overrides
from inference.sequences import Finished
from inference.tasks.shared.alignment import weights_of
from inference.tasks.shared.items import finished_of
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import GenerateCall, Outcomes
from inference.tasks.translation.languages import LanguageEncoding
from inference.tasks.translation.sentence_terms import GlossarySentence
from inference.tasks.translation.term_placement import SourceTerm, Target, contains, placed

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
        """Their numbers."""
        return tuple(call for call in (self.plain, self.forced) if call is not None)

    def result(self, outcomes: Outcomes, model: LoadedModel) -> Finished:
        """The hypotheses, each with its text.

        Raises:
            ServingError: the calls failed.
        """
        if self.plain is None:
            assert self.forced is not None
            return self._forced(finished_of(outcomes[self.forced]), model)
        plain = finished_of(outcomes[self.plain])
        forced = None if self.forced is None else outcomes[self.forced]
        if isinstance(forced, Finished):
            best = model.tokenizer.decode(plain.best.token_ids)
            is_close = self._mean(forced) >= self._mean(plain) - LARGEST_LOSS
            if is_close and not contains(best, self.sentence.terms):
                return self._forced(forced, model)
        return self._placed(plain, model)

    def _mean(self, finished: Finished) -> float:
        """Log-probability a token."""
        length = len(finished.best.token_ids)
        return float(finished.best.score * length ** (self.length_penalty - 1))

    def _forced(self, forced: Finished, model: LoadedModel) -> Finished:
        decode = model.tokenizer.decode
        texts = [self.sentence.restored(decode(one.token_ids)) for one in forced.hypotheses]
        pieces = map(self.sentence.restored, model.tokenizer.pieces(forced.best.token_ids))
        return forced.written(texts, pieces, forced.best.alignment)

    def _placed(self, plain: Finished, model: LoadedModel) -> Finished:
        targets: list[Target] = []
        for one in plain.hypotheses:
            weights = weights_of(one.alignment, rows=len(one.token_ids))
            targets.append(placed(one.token_ids, weights, self.terms, model.tokenizer))
        texts = [self.sentence.restored(target.text) for target in targets]
        pieces = map(self.sentence.restored, targets[0].pieces)
        return plain.written(texts, pieces, targets[0].weights)


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
    if not is_aligned or (sentence.is_spelled and len(sentence.phrases) <= FORCED_TERMS):
        forced = len(calls)
        calls.append(model.generate_call(inputs, _forcing(sentence, len(ids), options, model)))
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


def _forcing(
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
