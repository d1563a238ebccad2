"""`answer`: spans of passages that answer a question, scored by the pipeline of `transformers` 4.

`QuestionAnsweringPipeline`, which `transformers` 5 no longer has:

1. Question and passage are one sequence; the passage is second, or first where the tokenizer pads
   on the left. A long passage is divided into windows (`doc_stride`, `max_seq_len`).
2. In each window, start and end logits become probabilities by a softmax over the passage's tokens
   and the class token, the one of the null answer.
3. The score of a span is the product p_start(first) p_end(last); it has at most `max_answer_len`
   tokens. The class token is part of no span.
4. The score of the null answer is p_start p_end of the class token, and of several windows the
   least: a passage has no answer where no window has one. It competes with the spans.
5. A span is widened to the words that the tokenizer divides texts into (`align_to_words`).

Different here: spans that overlap a better one are left out, while the pipeline returned such
spans, or added the scores of equal texts, which are no probabilities then; spans begin and end with
no space, and words are whole where a window cuts them; the class token is where the tokenizer puts
it (XLNet's is last). Several passages are read as several windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from inference.bundle.manifest import Manifest, Role
from inference.errors import InvalidRequest, ServingError, TooLong
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.canaries import part_canaries
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.labels import MAX_TOKENS, windows
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    InferCall,
    Outcome,
    answer_each,
    attempt_each,
)
from inference.tasks.shared.needs import SPANS, Need
from inference.tasks.shared.rows import Row
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from inference.tasks.shared.text_rows import TextRows
from triptych import documents
from triptych.messages import Usage
from triptych.tasks import answer as declared
from triptych.tasks.answer import MAX_PASSAGES, AnswerRequest, AnswerResponse, Answers, FoundAnswer

WINDOW, STRIDE = 384, 128
"""Tokens of a window and of what two windows share, at most, where a request has none."""
MAX_PAIR_CHARACTERS = 5_000_000
"""Of all pairs of a request: each is tokenised, the question with every passage again."""
_PAIR_SIZE = 32
"""Work for one pair of no length, in characters."""

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def _scores_ends(manifest: Manifest) -> bool:
    found = manifest.part(takes=Role.TOKENS, returns=Role.LOGITS)
    logits = found.graph.output(Role.LOGITS) if found else None
    return logits is not None and logits.shape[1:] == ("T", 2)


class AnswerSection(TaskConfig):
    """What a reader does where a passage has no answer."""

    null_token_id: int | None = None
    """The special token at which the null answer starts and ends; None: there is no such answer."""


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (excluded) of a passage."""

    score: float
    passage: int
    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Whether they share a character."""
        is_apart = self.end <= other.start or other.end <= self.start
        return self.passage == other.passage and not is_apart


@dataclass(frozen=True, eq=False)
class _Window:
    """A part of a passage with its question.

    Attributes:
        number: Among the different inputs of the request.
        length: T, tokens in all.
        tokens: (N,), positions of the passage's tokens.
        null: Position of the null answer's token.
        starts: (N,): the character at which an answer from a token on starts.
        ends: (N,): the character before which an answer up to a token ends.
    """

    passage: int
    number: int
    length: int
    tokens: Places
    null: int | None
    starts: Places
    ends: Places


@dataclass(frozen=True, eq=False)
class ScoredWindow:
    """A window whose ends of answers have probabilities.

    Attributes:
        start: (N,), of each token of the passage.
        end: Likewise.
        null_score: Of the null answer, if there is one.
    """

    window: _Window
    start: Numbers
    end: Numbers
    null_score: float | None

    @classmethod
    def of(cls, window: _Window, logits: Array) -> ScoredWindow:
        """The window with the model's output.

        Args:
            logits: (T, 2), of start and end.
        """
        null = () if window.null is None else (window.null,)
        kept = logits[[*window.tokens, *null]].astype(np.float64)
        weights = np.exp(kept - kept.max(axis=0))
        start, end = (weights / weights.sum(axis=0)).T
        null_score = None if window.null is None else float(start[-1] * end[-1])
        count = len(window.tokens)
        return cls(window, start[:count], end[:count], null_score)

    def best(self, longest: int, taken: Sequence[Span]) -> Span | None:
        """The best span that overlaps none of these; of equal ones the first, then the shortest.

        Args:
            longest: Tokens, at most.
            taken: Of the same passage.
        """
        starts = self.window.starts[:, None]
        ends = _next_values(self.window.ends, longest)
        is_free = ends > starts
        for span in taken:
            is_free &= (ends <= span.start) | (starts >= span.end)
        found = np.where(is_free, self.start[:, None] * _next_values(self.end, longest), -1.0)
        first, more = np.unravel_index(found.argmax(), found.shape)
        if not is_free[first, more]:
            return None
        start, end = int(starts[first, 0]), int(ends[first, more])
        return Span(float(found[first, more]), self.window.passage, start, end)


def _next_values(values: Array, count: int) -> Array:
    """(N,) → (N, `count`): each value and those behind it, 0 behind the last."""
    return sliding_window_view(np.pad(values, (0, count - 1)), count)


def best_spans(scored: Sequence[ScoredWindow], count: int, longest: int) -> list[Span]:
    """The best spans, of which no two overlap, best first.

    A span that overlaps a better one is left out.

    Args:
        count: At most.
        longest: Tokens of a span, at most.
    """
    found: list[Span] = []
    best = [each.best(longest, ()) for each in scored]
    while len(found) < count and (left := [span for span in best if span is not None]):
        top = max(left, key=lambda span: span.score)
        found.append(top)
        for place, span in enumerate(best):
            if span is not None and span.overlaps(top):
                taken = [one for one in found if one.passage == span.passage]
                best[place] = scored[place].best(longest, taken)
    return found


@dataclass(frozen=True)
class AnswerPlan(Plan):
    """Calls that read the windows of each question."""

    model: LoadedModel
    request: AnswerRequest
    questions: tuple[Sequence[_Window] | ServingError, ...]
    rows: Sequence[Row]
    calls: tuple[InferCall, ...]
    prompt_tokens: int

    def finish(self, outcomes: Sequence[Outcome]) -> AnswerResponse:
        def select_answers(index: int, found: Sequence[_Window]) -> Answers:
            scored = [
                ScoredWindow.of(
                    window, self.rows[window.number].read(outcomes, Role.LOGITS, window.length)
                )
                for window in found
            ]
            null_scores = [each.null_score for each in scored if each.null_score is not None]
            null_score = min(null_scores, default=None)
            return Answers(
                index=index, answers=self._answers(scored, null_score), null_score=null_score
            )

        data = answer_each(self.questions, select_answers, Answers)
        return AnswerResponse(
            model=self.model.name, data=data, usage=Usage(prompt_tokens=self.prompt_tokens)
        )

    def finish_size(self, outcomes: Sequence[Outcome]) -> int:
        found = [each for each in self.questions if not isinstance(each, ServingError)]
        tokens = sum(window.length for question in found for window in question)
        return tokens * self.request.max_answer_tokens

    def _answers(
        self, scored: Sequence[ScoredWindow], null_score: float | None
    ) -> list[FoundAnswer]:
        request = self.request
        answers = [
            FoundAnswer(
                text=request.passages[span.passage][span.start : span.end],
                score=span.score,
                start=span.start,
                end=span.end,
                passage=span.passage,
            )
            for span in best_spans(scored, request.n, request.max_answer_tokens)
        ]
        if request.null_threshold is not None and null_score is not None:
            bound = null_score * exp(-request.null_threshold)
            place = sum(answer.score >= bound for answer in answers)
            answers.insert(place, FoundAnswer(text="", score=null_score, start=0, end=0))
        return answers[: request.n]


class Answer(ServedTask[AnswerRequest, AnswerSection]):
    """Models with a question-answering head: logits of start and end for each token."""

    declaration = declared.TASK
    section = AnswerSection
    needs = (Need("a part that takes tokens and returns logits (B, T, 2)", _scores_ends), SPANS)

    def prepare(
        self, request: AnswerRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> AnswerPlan:
        model.task_limits.check_batch(len(request.question), "question")
        pairs = len(request.question) * len(request.passages)
        if (characters := self.size(request) - pairs * _PAIR_SIZE) > MAX_PAIR_CHARACTERS:
            raise InvalidRequest(
                f"the pairs of question and passages have {characters} characters, at most "
                f"{MAX_PAIR_CHARACTERS}: send several requests",
                field="passages",
            )
        reader = _Reader(request, model, self.section_of(model).null_token_id)
        questions = attempt_each(request.question, reader.question)
        calls: list[InferCall] = []
        part = model.part(takes=Role.TOKENS, returns=Role.LOGITS)
        rows = reader.rows.batch(part, (Role.LOGITS,), calls)
        tokens = sum(map(len, reader.rows.texts))
        return AnswerPlan(model, request, questions, rows, tuple(calls), tokens)

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return part_canaries(model, (Role.TOKENS, Role.LOGITS))

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        return {"max_passages": MAX_PASSAGES, "max_pair_characters": MAX_PAIR_CHARACTERS}

    def size(self, request: AnswerRequest) -> int:
        """Characters of all pairs, and what a pair takes whatever its length."""
        passages, questions = len(request.passages), len(request.question)
        characters = sum(map(len, request.passages)) * questions
        characters += sum(map(len, request.question)) * passages
        return characters + passages * questions * _PAIR_SIZE


class _Reader:
    """Divides the passages of a request into windows.

    Raises:
        InvalidRequest: a window would be longer than the model takes, or there is no null answer.
    """

    def __init__(self, request: AnswerRequest, model: LoadedModel, null: int | None) -> None:
        self.rows = TextRows(model)
        self._request, self._model, self._null = request, model, null
        self._tokens = 0
        limit = model.text_limit
        self._window = request.max_window_tokens or min(limit, WINDOW)
        if self._window > limit:
            raise InvalidRequest(
                f"max_window_tokens is {self._window}, {model.name} takes at most {limit}",
                field="max_window_tokens",
            )
        given = request.stride
        self._stride = min(STRIDE, self._window // 2) if given is None else given
        if request.null_threshold is not None and null is None:
            raise InvalidRequest(
                f"{model.name} has no null answer: leave null_threshold out", field="null_threshold"
            )
        spec = model.manifest.tokenizer
        assert spec is not None
        self._order = (1, 0) if spec.padding_side == "left" else (0, 1)
        """Which text of a pair is the question, and which the passage."""

    def question(self, index: int, question: str) -> list[_Window]:
        """The windows of all passages.

        Raises:
            InvalidRequest: a text is empty, or there are too many windows.
            TooLong: the question leaves no room for a passage, or a passage is too long.
        """
        field = f"question.{index}"
        self._model.encode_text(question, field)
        found: list[_Window] = []
        for passage in range(len(self._request.passages)):
            encoded = self._pair(question, field, passage)
            found += self._windows(encoded, field, passage)
        return found

    def _pair(self, question: str, field: str, passage: int) -> EncodedText:
        text, own = self._request.passages[passage], f"passages.{passage}"
        if documents.is_document(text):
            raise InvalidRequest(f"{own} is a document: only a gateway reads them", field=own)
        texts = (question, field), (text, own)
        (first, first_field), (second, second_field) = (texts[place] for place in self._order)
        return self._model.encode_text(
            first,
            first_field,
            second=second,
            second_field=second_field,
            with_offsets=True,
            is_whole=False,
        )

    def _windows(self, encoded: EncodedText, field: str, passage: int) -> Iterable[_Window]:
        own = self._order[1]
        places = [place for place, which in enumerate(encoded.sequences) if which == own]
        room = self._window - (len(encoded) - len(places))
        if room <= 0 or (len(places) > room and self._stride >= room):
            asked = sum(which == self._order[0] for which in encoded.sequences)
            raise TooLong(
                f"{field} has {asked} tokens, which leaves {max(room, 0)} of a window's "
                f"{self._window} for a passage, and windows share {self._stride} (stride): "
                "shorten it",
                field=field,
            )
        divided = windows(encoded, self._window, self._stride, "stride", own)  # bounds the work
        starts, ends = self._ends(encoded, places, self._request.passages[passage])
        for positions in divided:
            self._tokens += len(positions)
            if self._tokens > MAX_TOKENS:
                raise InvalidRequest(
                    f"the windows of all passages have more than {MAX_TOKENS} tokens: send several "
                    "requests",
                    field="passages",
                )
            inside = [place for place, i in enumerate(positions) if encoded.sequences[i] == own]
            first = positions[inside[0]] - places[0]
            part = slice(first, first + len(inside))
            yield _Window(
                passage,
                self.rows.add(encoded.at(positions)),
                len(positions),
                np.array(inside),
                self._null_place(encoded, positions),
                starts[part],
                ends[part],
            )

    def _null_place(self, encoded: EncodedText, positions: Sequence[int]) -> int | None:
        """Where the null answer's token is among these."""
        for place, i in enumerate(positions):
            if encoded.sequences[i] is None and encoded.ids[i] == self._null:
                return place
        return None

    def _ends(
        self, encoded: EncodedText, places: Sequence[int], passage: str
    ) -> tuple[Places, Places]:
        """Where answers start and end that start and end with each token: spaces are left out.

        Tokens of nothing but spaces start with the text behind them, and end with that before.

        Args:
            places: Positions of the passage's tokens.
        """
        spans = [encoded.offsets[i] for i in places]
        if encoded.words and self._request.align_to_words:
            spans = _words([encoded.words[i] for i in places], spans)
        text = np.flatnonzero([not character.isspace() for character in passage])
        starts, ends = np.array(spans).T
        following = np.append(text, len(passage))[np.searchsorted(text, starts)]
        return following, np.append(0, text + 1)[np.searchsorted(text, ends)]


def _words(words: Sequence[int | None], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each token the place of its word.

    Args:
        words: The number of each token's word; a token without one is alone.
        spans: The tokens' places.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for word, (start, end) in zip(words, spans, strict=True):
        if word is not None:
            first[word] = min(first.get(word, start), start)
            last[word] = max(last.get(word, end), end)
    return [
        span if word is None else (first[word], last[word])
        for word, span in zip(words, spans, strict=True)
    ]


TASK = Answer()
