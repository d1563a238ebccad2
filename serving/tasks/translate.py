"""Translation: texts to sentences to one generator call each, and back to texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.codec import SOURCE_IDS
from serving.errors import InvalidRequest, TooLong, TriptychError
from serving.generation import Overrides
from serving.processing.sentences import Paragraph, split_sentences
from serving.tasks.alignment import check_size, side_by_side, weights_of
from serving.tasks.batch import attempt_each, in_place, unwrap
from serving.tasks.call import GenerateCall, Generated, Outcome
from serving.tasks.model import LoadedModel, TaskLimits
from serving.tasks.stream import Part, StreamedItem, Streaming, check_stream
from serving.tasks.tokens import LiveText
from triptych.messages import Alternative, Usage
from triptych.tasks.translate import Alignment, TranslateRequest, TranslateResponse, Translation

_PREFIX = re.compile(r"\s*(>>[^<\s]*<<)\s*")


@dataclass(frozen=True)
class Text:
    """One text of the request: its paragraph and its sentences' calls, [first, last)."""

    paragraph: Paragraph
    first: int
    last: int


@dataclass(frozen=True)
class TranslatePlan:
    """The calls of one request and how their outcomes become its answer."""

    model: LoadedModel
    texts: tuple[Text | TriptychError, ...]
    calls: tuple[GenerateCall, ...]
    with_alternatives: bool
    with_alignment: bool

    def finish(self, outcomes: Sequence[Outcome]) -> TranslateResponse:
        """The answer, given one outcome for each call.

        Raises:
            TriptychError: no text could be translated; the first one's error.
        """

        def translated(index: int, text: Text | TriptychError) -> Translation:
            return self._translation(index, unwrap(text), outcomes)

        results = attempt_each(self.texts, translated)
        generated = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
        return TranslateResponse(
            model=self.model.name,
            data=in_place(results, Translation),
            usage=usage(generated),
        )

    def streaming(self) -> Streaming:
        """The answer as pieces: sentences in order, each as it is translated."""
        return Streaming([self._streamed(text) for text in self.texts], self.calls)

    def _streamed(self, text: Text | TriptychError) -> StreamedItem | TriptychError:
        if isinstance(text, TriptychError):
            return text
        gaps = text.paragraph.gaps
        parts = tuple(
            Part(call, self._read, before)
            for call, before in zip(range(text.first, text.last), gaps[:-1], strict=True)
        )
        return StreamedItem(parts, after=gaps[-1])

    def _read(self) -> LiveText:
        return LiveText(self.model.tokenizer)

    def _translation(self, index: int, text: Text, outcomes: Sequence[Outcome]) -> Translation:
        sentences = [unwrap(outcome) for outcome in outcomes[text.first : text.last]]
        generated = [sentence for sentence in sentences if isinstance(sentence, Generated)]
        # The k-th alternative of a text is made of the k-th hypotheses of its sentences.
        hypotheses = [
            Alternative(
                text=text.paragraph.join(
                    [
                        self.model.tokenizer.decode(sentence.sequences[rank])
                        for sentence in generated
                    ]
                ),
                score=sum(sentence.scores[rank] for sentence in generated),
            )
            for rank in range(min(len(sentence.sequences) for sentence in generated))
        ]
        return Translation(
            index=index,
            text=hypotheses[0].text,
            score=hypotheses[0].score,
            alternatives=hypotheses if self.with_alternatives else None,
            alignment=self._alignment(text, generated) if self.with_alignment else None,
        )

    def _alignment(self, text: Text, sentences: Sequence[Generated]) -> Alignment:
        sources = [call.inputs[SOURCE_IDS] for call in self.calls[text.first : text.last]]
        pieces = self.model.tokenizer.pieces
        return Alignment(
            source_tokens=[p for ids in sources for p in pieces(ids.tolist(), of_source=True)],
            target_tokens=[p for found in sentences for p in pieces(found.sequences[0])],
            weights=side_by_side(
                [
                    weights_of(found, columns=len(ids))
                    for found, ids in zip(sentences, sources, strict=True)
                ]
            ),
        )


def prepare(request: TranslateRequest, model: LoadedModel, limits: TaskLimits) -> TranslatePlan:
    """A request's calls: one for each sentence.

    Raises:
        InvalidRequest: too many texts, more alternatives than beams, an unknown target language.
        TriptychError: no text can be translated; the first one's error.
    """
    limits.check_batch(len(request.texts), "texts")
    options = model.overrides(
        num_beams=request.num_beams,
        alternatives=request.alternatives,
        length_penalty=request.length_penalty,
        return_alignment=request.return_alignment or None,
        stream=request.stream,
    )
    if request.return_alignment:
        model.alignment("tokens", "return_alignment")
    check_stream(
        request.stream, alternatives=request.alternatives, return_alignment=options.return_alignment
    )
    prefix = _target_prefix(request.target, model)
    calls: list[GenerateCall] = []

    def planned(index: int, text: str) -> Text:
        field = f"texts.{index}"
        paragraph, ids = _encode(text, prefix, field, model, limits)
        first = len(calls)
        calls.extend(_call(model, sentence, options) for sentence in ids)
        return Text(paragraph, first, len(calls))

    texts = attempt_each(request.texts, planned)
    if request.return_alignment:
        check_size([call.tokens for call in calls])
    return TranslatePlan(
        model,
        texts,
        tuple(calls),
        with_alternatives=request.alternatives is not None,
        with_alignment=bool(request.return_alignment),
    )


def usage(generated: Sequence[Generated]) -> Usage:
    """Tokens over all sequences."""
    return Usage(
        prompt_tokens=sum(answer.prompt_tokens for answer in generated),
        completion_tokens=sum(answer.completion_tokens for answer in generated),
    )


def _call(model: LoadedModel, ids: list[int], options: Overrides) -> GenerateCall:
    return GenerateCall(
        model=model.generator,
        version=model.manifest.version,
        inputs={SOURCE_IDS: np.array(ids, dtype=np.int64)},
        options=options,
    )


def _encode(
    text: str, prefix: str, field: str, model: LoadedModel, limits: TaskLimits
) -> tuple[Paragraph, list[list[int]]]:
    """The text's paragraph and its sentences' ids.

    Raises:
        InvalidRequest: nothing to translate, or no target language where the model needs one.
        TooLong: a sentence is longer than the model takes, or the text than the gateway takes.
    """
    prefix, text = _addressed(text, prefix, model)
    paragraph = split_sentences(text)
    if not paragraph.sentences:
        raise InvalidRequest(f"{field} is empty: there is nothing to translate", field=field)
    if _prefixes(model) and not prefix:
        raise InvalidRequest(
            f"{model.name} translates into several languages: give target", field="target"
        )
    ids, total = [], 0
    for sentence in paragraph.sentences:
        ids.append(model.encode(f"{prefix} {sentence}" if prefix else sentence, field, limits))
        model.check_length(len(ids[-1]), field, what=f" (sentence {len(ids)})")
        total += len(ids[-1])
        if total > limits.max_input_tokens:
            raise TooLong(
                f"{field} has more than {limits.max_input_tokens} tokens "
                f"({total} in its first {len(ids)} of {len(paragraph.sentences)} sentences): "
                "split it into several texts",
                field=field,
            )
    return paragraph, ids


def _prefixes(model: LoadedModel) -> tuple[str, ...]:
    tokenizer = model.manifest.tokenizer
    return tokenizer.target_prefixes if tokenizer else ()


def _target_prefix(target: str | None, model: LoadedModel) -> str:
    """`>>xx<<` for the language asked, empty for models of one language."""
    prefixes = _prefixes(model)
    if not prefixes or target is None:
        return ""
    prefix = f">>{target}<<"
    if prefix not in prefixes:
        known = ", ".join(sorted(known.strip("><") for known in prefixes))
        raise InvalidRequest(
            f"{model.name} does not translate into that language; supported are: {known}",
            field="target",
        )
    return prefix


def _addressed(text: str, prefix: str, model: LoadedModel) -> tuple[str, str]:
    """(prefix, rest): a `>>xx<<` that begins the text holds for all its sentences."""
    found = _PREFIX.match(text)
    if found and found.group(1) in _prefixes(model):
        return found.group(1), text[found.end() :]
    return prefix, text
