"""Generated texts of a request: one call for each prompt, until its end or a stop string."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.errors import ServingError
from inference.generation import FinishReason, Hypothesis, Overrides, TokenChunk, Top
from inference.processing.tokenizer import TextOffsets
from inference.tasks.generation.overrides import is_greedy_stream
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    GenerateCall,
    Outcome,
    answer_each,
    finished_of,
    usage_of,
)
from inference.tasks.shared.served_task import Plan
from inference.tasks.shared.streaming import RenderLogprobs, Streaming, no_logprobs, one_call_each
from triptych.messages import (
    Continuation,
    Generation,
    OutputParameters,
    PromptLogprob,
    Response,
    TokenLogprob,
    TopToken,
)


@dataclass(frozen=True)
class Echo:
    """A prompt that is returned with its outputs.

    Attributes:
        text: As it was laid out.
        token_ids: Its tokens; empty where no log-probabilities are requested.
        call: Number of the call that scores its tokens after the first; None for one token.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    call: int | None = None


@dataclass(frozen=True)
class ContinuationPlan(Plan):
    """One call for each prompt.

    Attributes:
        response: The task's response message.
        numbers: For each prompt its call's number, or its error.
        read: A reader of one output's tokens.
        with_structure: Whether outputs match choices, an expression or a schema.
        echoes: Index of a prompt → its echo.
    """

    response: type[Response[Generation]]
    request: OutputParameters
    model: LoadedModel
    numbers: tuple[int | ServingError, ...]
    calls: tuple[GenerateCall, ...]
    read: Callable[[], IncrementalText]
    with_logprobs: bool
    with_structure: bool
    echoes: Mapping[int, Echo] = field(default_factory=dict)

    def finish(self, outcomes: Sequence[Outcome]) -> Response[Generation]:
        completion_tokens = 0

        def generate(index: int, number: int) -> Generation:
            nonlocal completion_tokens
            finished = finished_of(outcomes[number])
            echo = self.echoes.get(index)
            start = len(echo.text) if echo else 0
            found = [self._continuation(hypothesis, start) for hypothesis in finished.hypotheses]
            completion_tokens += sum(tokens for _, tokens in found)
            # A stop string may change the order, and samples arrive in the order drawn.
            found.sort(key=lambda output: _ranking(output[0].score), reverse=True)
            if echo is not None:
                found = [
                    (output.model_copy(update={"text": echo.text + output.text}), tokens)
                    for output, tokens in found
                ]
            best = found[0][0]
            return Generation(
                index=index,
                **{name: getattr(best, name) for name in type(best).model_fields},
                alternatives=[output for output, _ in found]
                if self.request.n is not None
                else None,
                prompt_logprobs=self._prompt_logprobs(echo, outcomes) if echo else None,
            )

        data = answer_each(self.numbers, generate, Generation)
        own = [outcomes[number] for number in self.numbers if isinstance(number, int)]
        usage = usage_of(own).model_copy(update={"completion_tokens": completion_tokens})
        return self.response(model=self.model.name, data=data, usage=usage)

    def streaming(self) -> Streaming:
        items = one_call_each(self.numbers, self.read)
        is_greedy = is_greedy_stream(self.request, self.calls, self.model)
        return Streaming(items, self.calls, self._rendering, is_greedy=is_greedy)

    def _continuation(self, hypothesis: Hypothesis, start: int) -> tuple[Continuation, int]:
        """One hypothesis, cut at a stop string, and the number of tokens that remain of it.

        Args:
            start: Characters of the returned text before it.
        """
        tokens = hypothesis.tokens
        live = self.read()
        text = live.add(tokens) + live.finish()
        kept = tokens[: live.length]
        score: float | None = hypothesis.score
        reason = hypothesis.finish_reason
        if live.is_stopped:
            penalty = self.request.length_penalty
            penalty = self.model.generation.length_penalty if penalty is None else penalty
            score, reason = _score(kept, penalty), FinishReason.STOP
        output = Continuation(
            text=text,
            finish_reason=reason,
            score=score,
            logprobs=self._rendering(start)(kept),
            is_incomplete=reason == FinishReason.LENGTH if self.with_structure else None,
        )
        return output, live.length

    def _rendering(self, start: int = 0) -> RenderLogprobs:
        """See `Streaming`: of one output, whose text begins at a place of the returned one."""
        if not self.with_logprobs:
            return no_logprobs
        offsets = TextOffsets(self.model.tokenizer, start)

        def render(tokens: TokenChunk) -> list[TokenLogprob] | None:
            if not tokens.log_probs:
                return None
            return token_logprobs(tokens, self.model, offsets.add(tokens.token_ids))

        return render

    def _prompt_logprobs(
        self, echo: Echo, outcomes: Sequence[Outcome]
    ) -> list[PromptLogprob] | None:
        """The prompt's tokens; nothing precedes the first one."""
        if not echo.token_ids:
            return None
        scored = TokenChunk(())
        if echo.call is not None:
            scored = finished_of(outcomes[echo.call]).best.tokens
        log_probs = (None, *scored.log_probs)
        tops = ((), *(scored.top or ((),) * len(scored.token_ids)))
        places = _prompt_offsets(echo, self.model)
        return [
            PromptLogprob(
                logprob=log_prob,
                top=_top(top, self.model),
                text_offset=place,
                **_token_fields(number, self.model),
            )
            for number, log_prob, top, place in zip(
                echo.token_ids, log_probs, tops, places, strict=True
            )
        ]


def token_logprobs(
    tokens: TokenChunk, model: LoadedModel, offsets: Sequence[int | None] = ()
) -> list[TokenLogprob]:
    """Log-probabilities of tokens as responses carry them.

    Args:
        offsets: Where each begins in the returned text, where that has them.
    """
    places = offsets or (None,) * len(tokens.token_ids)
    tops = tokens.top or ((),) * len(tokens.token_ids)
    return [
        TokenLogprob(
            logprob=log_prob,
            top=_top(top, model),
            text_offset=place,
            **_token_fields(number, model),
        )
        for number, log_prob, top, place in zip(
            tokens.token_ids, tokens.log_probs, tops, places, strict=True
        )
    ]


def _top(best: Top, model: LoadedModel) -> list[TopToken]:
    return [TopToken(logprob=score, **_token_fields(token, model)) for token, score in best]


def _token_fields(number: int, model: LoadedModel) -> dict[str, Any]:
    """What a message has of a token, whatever stands beside it."""
    (piece,) = model.tokenizer.pieces([number])
    (found,) = model.tokenizer.bytes_of([number])
    return {"token": piece, "token_id": number, "bytes": list(found)}


def _prompt_offsets(echo: Echo, model: LoadedModel) -> Sequence[int | None]:
    """Where the tokens of an echo begin in it; None where images stand in places of the text."""
    if not echo.text:
        return [0] * len(echo.token_ids)
    ids, found = model.spans.starts(echo.text)
    return found if tuple(ids) == echo.token_ids else [None] * len(echo.token_ids)


def given_tokens(token_ids: Sequence[int], logprobs: int) -> Overrides:
    """The options of a call that takes tokens one by one, for their scores.

    Args:
        logprobs: Best tokens that are returned with each.
    """
    return Overrides(
        num_beams=1,
        num_return_sequences=1,
        do_sample=False,
        max_new_tokens=len(token_ids),
        top_log_probs=logprobs,
        given_ids=tuple(token_ids),
    )


def rows_of(options: Overrides) -> int:
    """Rows of a call in the engine; only a single one can be read while it grows."""
    if options.do_sample:
        return options.best_of or options.num_return_sequences or 1
    return options.num_beams or 1


def _ranking(score: float | None) -> float:
    return -math.inf if score is None else score


def _score(tokens: TokenChunk, length_penalty: float) -> float | None:
    """The engine's score of a whole output; None where it returned no log-probabilities."""
    if not tokens.log_probs:
        return None
    return sum(tokens.log_probs) / math.pow(len(tokens.token_ids), length_penalty)
