"""One request's state in the engine, from the queue to its one final event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from inference.engine.drafts import Draft, Drafter
from inference.engine.request import Cancelled, EngineRequest, Event, Failed, Listener
from inference.engine.runners.candidates import CandidateRequest, GreedyRule
from inference.engine.runners.protocol import Capabilities, Prefill, Prompt
from inference.engine.search.beam import BeamSearch
from inference.engine.search.constrained_beam import ConstrainedBeamSearch
from inference.engine.search.greedy import ForcedDecoding, GreedySearch
from inference.engine.search.protocol import Beams, Search, SearchInput, StepResult
from inference.engine.search.sampling import SampleSearch
from inference.engine.state.group_state import BufferShape
from inference.errors import DeadlineExceeded, InvalidRequest
from inference.generation import Finished, Hypothesis, TokenChunk
from inference.model_errors import hide_cause

log = logging.getLogger(__name__)

Align = Callable[[Prompt, tuple[int, ...]], NDArray[np.float32]]
"""`Runner.align`."""


class SequenceState:
    """A request, its search and its listener. Only `cancel` is thread-safe.

    Attributes:
        next_ids: Input token of each row at the next step, (width,).
        generated: Tokens generated so far, per row.
        admission: Its place in the order of admissions; the largest number is the youngest.
        reads_given: Whether the tokens that its request gives are scored in its prefill.
        is_read_whole: Whether one call must read its request's prompt and nothing else.
        whole_tokens: So many of the first tokens must be read by one call (D104).
        was_put_back: Whether it has lost its memory once; it does not lose it again.
    """

    def __init__(self, request: EngineRequest, listener: Listener) -> None:
        self.request = request
        self.width = request.rules.rows
        self.next_ids: Sequence[int] = ()
        self.generated = len(request.rules.generated_ids)
        self.admission = 0
        self.reads_given = False
        self.is_read_whole = False
        self.whole_tokens = 0
        self.was_put_back = False
        self._listener = listener
        self._streams = request.stream and self.width == 1
        self._search = _search(request)
        self._drafter: Drafter | None = None
        self._fed = [*request.rules.generated_ids]
        """Generated tokens that are or will be inputs, of one row."""
        self._is_cancelled = self._has_ended = False

    @property
    def decoder_ids(self) -> tuple[int, ...]:
        """Tokens to prefill: the request's, and behind them those of a sequence put back.

        Of given tokens that are scored in the prefill, the last one need not be read.
        """
        if self.reads_given:
            given = self.request.rules.given_ids[: self.request.rules.max_new_tokens]
            return (*self.request.decoder_ids, *given[:-1])
        return (*self.request.decoder_ids, *self._fed)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """`decoder_ids` as the prefix cache compares them."""
        request = self.request
        behind = self.decoder_ids[len(request.decoder_ids) :]
        return (*request.prefix_ids, *behind) if request.prefix_ids else ()

    @property
    def cacheable_ids(self) -> tuple[int, ...]:
        """`prefix_ids` whose state may come from the prefix cache: what is scored is computed."""
        return self.request.prefix_ids if self.reads_given else self.prefix_ids

    def adapt_to(self, runner: Capabilities) -> None:
        """Decides how its prompt is read. Called before its prefill."""
        self.reads_given = runner.scores_prompts and bool(self.request.rules.given_ids)
        self.is_read_whole = runner.reads_whole_prompts
        ids, image = self.request.decoder_ids, runner.whole_image_token
        if self.request.pixels is not None and image in ids:
            self.whole_tokens = len(ids) - ids[::-1].index(image)

    @property
    def is_resumed(self) -> bool:
        """Whether a call behind that of its prompt must read what it generated (D104)."""
        return self.is_read_whole and bool(self._fed)

    @property
    def prompt(self) -> Prompt:
        """The runner's inputs."""
        return replace(self.request.prompt, token_ids=np.array(self.decoder_ids, np.int64))

    def put_back(self) -> None:
        """Prepares for another prefill, after its state was lost (D13).

        One row goes on behind the tokens that it has; beams and samples of several rows begin anew.
        """
        self.was_put_back = True
        if self.width > 1:
            self._search, self.generated = _search(self.request), 0

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Candidates that each row needs at the next step; after prefill only the first row's."""
        return self._search.row_requests

    @property
    def beams(self) -> Beams | None:
        """Beams whose continuations are ranked before `advance`, if any."""
        return self._search.beams

    def cancel(self) -> None:
        """Ends the sequence before its next step. Thread-safe."""
        self._is_cancelled = True

    def due_event(self, now_s: float) -> Event | None:
        """The final event if the sequence must end before its next step."""
        if self._is_cancelled:
            return Cancelled()
        deadline_s = self.request.deadline_s
        if deadline_s is not None and now_s >= deadline_s:
            return Failed(
                DeadlineExceeded(
                    f"the deadline passed after {self.generated} tokens: allow more time, or ask "
                    "for fewer tokens or beams"
                )
            )
        return None

    def finish_if_due(self, now_s: float) -> bool:
        """Ends a sequence that was cancelled or is past its deadline; returns whether it did."""
        ending = self.due_event(now_s)
        if ending is not None:
            self.emit(ending)
        return ending is not None

    def finish_if_complete(self) -> bool:
        """Ends a sequence that was lost behind its last token (D102); returns whether it did.

        Only its final event was lost. Called before its prefill.
        """
        if self._search.has_ended:
            self.emit(Finished(self._hypotheses(), self.request.prompt_tokens))
        return self._search.has_ended

    def defer_prefill(self) -> None:
        """Leaves its prompt, of one token, to the next decode step."""
        (start,) = self.request.decoder_ids
        self.next_ids = (start,)

    def advance(self, search_input: SearchInput, align: Align) -> StepResult | None:
        """Chooses next tokens and emits events; None when the sequence has ended.

        An exception ends it, and no other.

        Args:
            align: Called once per returned hypothesis, if alignments are requested.
        """
        try:
            return self._advance(search_input, align)
        except Exception as error:
            self._fail(error)
            return None

    def _advance(self, search_input: SearchInput, align: Align) -> StepResult | None:
        advance = self._search.advance(search_input)
        self.generated += 1
        if advance is None:
            self._finish(align)
            return None
        self.next_ids = advance.token_ids
        if self.width == 1:
            self._fed += advance.token_ids
            if self._drafter is not None:
                self._drafter.accept(advance.token_ids[0])
        if self._streams:
            record = advance.record
            has_log_probs = record is not None and self.request.rules.top_log_probs is not None
            records = ((record.log_prob,), (record.top,)) if record and has_log_probs else ((), ())
            self.emit(TokenChunk((advance.token_ids[0],), *records))
        return advance

    @property
    def greedy_rule(self) -> GreedyRule | None:
        """What the next steps follow if they are greedy; None where each must be seen."""
        return self._search.greedy_rule

    @property
    def steps_of_rule(self) -> int:
        """How many of the next steps follow `greedy_rule`, whatever their tokens are."""
        return self._search.steps_of_rule

    def take(self, token_ids: Sequence[int], log_probs: NDArray[np.float32], align: Align) -> bool:
        """Takes tokens chosen by several steps and emits events; whether the sequence runs on.

        Requires `greedy_rule`. Tokens behind one that ends the sequence are dropped. An
        exception ends it, and no other.
        """
        try:
            return self._take(token_ids, log_probs, align)
        except Exception as error:
            self._fail(error)
            return False

    def _take(self, token_ids: Sequence[int], log_probs: NDArray[np.float32], align: Align) -> bool:
        assert isinstance(self._search, GreedySearch)
        taken = self._search.take(token_ids, log_probs)
        self.generated += len(token_ids) if taken is None else taken
        if taken is not None:
            self._finish(align, unsent=taken)
            return False
        self.next_ids = (token_ids[-1],)
        self._fed += token_ids
        if self._streams:
            self.emit(TokenChunk(tuple(token_ids)))
        return True

    def draft(self, most: int, vocabulary_size: int) -> Draft:
        """At most so many tokens that may follow the next input.

        Empty where more than scores decides which token follows: where constraints depend on the
        tokens before it.
        """
        if self.width > 1 or self._search.follows_history:
            return Draft((), 0.0)
        if self._drafter is None:
            source = self.request.source_ids
            text = [] if source is None else source[source < vocabulary_size].tolist()
            self._drafter = Drafter([*text, *self.decoder_ids])
        # the last token may not be behind the longest answer
        return self._drafter.find(min(most, self.request.rules.max_new_tokens - self.generated - 1))

    def given_requests(self, count: int) -> Sequence[CandidateRequest]:
        """What the next given tokens need of their scores. Requires `reads_given`."""
        assert isinstance(self._search, ForcedDecoding)
        return self._search.next_requests(count)

    def emit(self, event: Event) -> None:
        """Passes an event to the listener, unless the final event has been emitted."""
        if self._has_ended:
            return
        self._has_ended = not isinstance(event, TokenChunk)
        try:
            self._listener(event)
        except Exception:  # a failing listener must not end other sequences
            log.exception("a listener failed")
            self.cancel()

    def _fail(self, error: Exception) -> None:
        is_users = isinstance(error, InvalidRequest)
        self.emit(Failed(error if is_users else hide_cause(error, "a search failed")))

    def _finish(self, align: Align, unsent: int = 1) -> None:
        """Emits the final events; of a stream, `unsent` tokens have not been emitted."""
        found = self._hypotheses()
        if self.request.rules.return_alignment:
            found = tuple(self._align(hypothesis, align) for hypothesis in found)
        if self._streams:
            best = found[0]
            last = slice(-unsent, None)
            tokens = best.token_ids[last], best.log_probs[last], best.top[last]
            self.emit(TokenChunk(*tokens, is_last=True))
        self.emit(Finished(found, self.request.prompt_tokens))

    def _hypotheses(self) -> tuple[Hypothesis, ...]:
        """The hypotheses, without the tokens that were generated before the sequence was lost."""
        found, before = self._search.hypotheses(), len(self.request.rules.generated_ids)
        if not before:
            return found
        return tuple(replace(one, token_ids=one.token_ids[before:]) for one in found)

    def _align(self, hypothesis: Hypothesis, align: Align) -> Hypothesis:
        """The hypothesis with its alignment, where `step` emitted none."""
        if hypothesis.alignment is not None:
            return hypothesis
        return replace(hypothesis, alignment=align(self.request.prompt, hypothesis.token_ids))


@dataclass(frozen=True, eq=False)
class PrefillingSequence:
    """A sequence whose prompt is prefilled in chunks; memory for its slot is reserved."""

    sequence: SequenceState
    prefill: Prefill

    def next_chunk(self, most: int) -> int:
        """Tokens to read next, at most so many where the prompt may be cut anywhere."""
        remaining = self.prefill.remaining_tokens
        done = len(self.sequence.decoder_ids) - remaining
        if not self.sequence.is_read_whole:
            return min(remaining, max(most, self.sequence.whole_tokens - done))
        is_first = not done
        return len(self.sequence.request.decoder_ids) if is_first else remaining


def longest(sequences: Sequence[SequenceState]) -> BufferShape:
    """The smallest sizes that hold these sequences at their maximal lengths."""
    requests = [sequence.request for sequence in sequences]
    return BufferShape.holding(
        len(requests),
        max((request.final_length for request in requests), default=0),
        max((request.source_length for request in requests), default=0),
    )


def _search(request: EngineRequest) -> Search:
    if request.rules.given_ids:
        return ForcedDecoding(request)
    if request.rules.force_words_ids:
        return ConstrainedBeamSearch(request)
    if request.rules.num_beams > 1:
        return BeamSearch(request)
    if request.rules.do_sample:
        return SampleSearch(request)
    return GreedySearch(request)
