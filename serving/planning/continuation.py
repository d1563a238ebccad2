"""Generated texts of a request: one call for each prompt, until its end or a stop string."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.errors import ServingError
from serving.generation import FinishReason, Overrides
from serving.planning.calls import GenerateCall, Generated, Outcome
from serving.planning.incremental_text import IncrementalText, Tokens
from serving.planning.items import attempt_each, generated_of, in_place, unwrap, usage_of
from serving.planning.loaded_model import LoadedModel
from serving.planning.served_task import Plan
from serving.planning.streaming import Segment, StreamedItem, Streaming
from triptych.messages import Continuation, Generation, Response, TokenLogprob, TopToken


@dataclass(frozen=True)
class ContinuationPlan(Plan):
    """One call for each prompt.

    Attributes:
        response: The task's response message.
        numbers: For each prompt its call's number, or its error.
        read: A reader of one output's tokens.
    """

    response: type[Response[Generation]]
    model: LoadedModel
    numbers: tuple[int | ServingError, ...]
    calls: tuple[GenerateCall, ...]
    read: Callable[[], IncrementalText]
    length_penalty: float
    with_alternatives: bool
    with_logprobs: bool

    def finish(self, outcomes: Sequence[Outcome]) -> Response[Generation]:
        """The outputs, best first."""
        completion_tokens = 0

        def generated(index: int, number: int | ServingError) -> Generation:
            nonlocal completion_tokens
            outcome = generated_of(outcomes[unwrap(number)])
            found = [self._continuation(outcome, rank) for rank in range(len(outcome.sequences))]
            completion_tokens += sum(tokens for _, tokens in found)
            # A stop string may change the order, and samples arrive in the order drawn.
            found.sort(key=lambda output: _ranking(output[0].score), reverse=True)
            best = found[0][0]
            return Generation(
                index=index,
                **{name: getattr(best, name) for name in type(best).model_fields},
                alternatives=[output for output, _ in found] if self.with_alternatives else None,
            )

        results = attempt_each(self.numbers, generated)
        usage = usage_of(outcomes).model_copy(update={"completion_tokens": completion_tokens})
        return self.response(model=self.model.name, data=in_place(results, Generation), usage=usage)

    def streaming(self) -> Streaming:
        """Each output as it is generated."""
        items = [
            number
            if isinstance(number, ServingError)
            else StreamedItem((Segment(number, self.read),))
            for number in self.numbers
        ]
        return Streaming(items, self.calls, self._logprobs)

    def _continuation(self, outcome: Generated, rank: int) -> tuple[Continuation, int]:
        """One hypothesis, cut at a stop string, and the number of tokens that remain of it."""
        ids = outcome.sequences[rank]
        log_probs = outcome.log_probs[rank] if outcome.log_probs else ()
        tokens = Tokens(ids, log_probs, outcome.top[rank] if outcome.top else ())
        live = self.read()
        text = live.add(tokens) + live.finish()
        kept = tokens[: live.length]
        score: float | None = outcome.scores[rank]
        reason = outcome.finish_reasons[rank]
        if live.is_stopped:
            score, reason = _score(kept, self.length_penalty), FinishReason.STOP
        output = Continuation(
            text=text, finish_reason=reason, score=score, logprobs=self._logprobs(kept)
        )
        return output, live.length

    def _logprobs(self, tokens: Tokens) -> list[TokenLogprob] | None:
        if not (self.with_logprobs and tokens.log_probs):
            return None
        pieces = self.model.tokenizer.pieces
        tops = tokens.top or ((),) * len(tokens.ids)
        return [
            TokenLogprob(
                token=token,
                logprob=log_prob,
                top=[TopToken(token=pieces([other])[0], logprob=score) for other, score in top],
            )
            for token, log_prob, top in zip(pieces(tokens.ids), tokens.log_probs, tops, strict=True)
        ]


def rows_of(options: Overrides) -> int:
    """Rows of a call in the engine; only a single one can be read while it grows."""
    if options.do_sample:
        return options.best_of or options.num_return_sequences or 1
    return options.num_beams or 1


def _ranking(score: float | None) -> float:
    return -math.inf if score is None else score


def _score(tokens: Tokens, length_penalty: float) -> float | None:
    """The engine's score of a whole output; None where it returned no log-probabilities."""
    if not tokens.log_probs:
        return None
    return sum(tokens.log_probs) / math.pow(len(tokens.ids), length_penalty)
