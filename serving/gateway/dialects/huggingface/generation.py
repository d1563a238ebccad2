"""`text_generation`: a prompt continued, whole or as TGI's events.

Events have one token each: the text of a chunk is divided among its tokens, and only the last token
waits for the end of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import Request

from inference.errors import ServingError
from inference.tasks.generate import TASK
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.dialects.all_or_nothing import Events, is_part_of_character
from serving.gateway.dialects.huggingface.generation_messages import (
    Details,
    Generated,
    GenerationBody,
    GenerationParameters,
    NamedJsonGrammar,
    OtherSequence,
    Reason,
    RegexGrammar,
    StreamDetails,
    StreamEvent,
    Token,
)
from serving.gateway.dialects.huggingface.route import (
    SAMPLING,
    TOKEN_EVENTS,
    HuggingFaceError,
    HuggingFaceRoute,
    error_body,
    label_of,
)
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import Chunk, Continuation, Generation, TokenLogprob, TopToken
from triptych.tasks.generate import GenerateRequest


@dataclass(frozen=True)
class GeneratingRequest(TaskRequest):
    """A task request with what only this route reads."""

    before: str = ""
    """The prompt, where it is returned with the text."""
    with_details: bool = False
    ends: frozenset[int] = frozenset()
    """The tokens that end a text."""
    seed: int | None = None

    def token(self, found: TokenLogprob | TopToken) -> Token:
        """A token in this API's form."""
        number = -1 if found.token_id is None else found.token_id
        return Token(
            id=number, text=found.token, logprob=found.logprob, special=number in self.ends
        )

    def reason(self, reason: str | None, last: Token | None) -> Reason:
        """Why a text ended, given its last token."""
        if reason == "length":
            return "length"
        return "eos_token" if last is not None and last.special else "stop_sequence"


_SAME_NAMES = ("frequency_penalty", "max_new_tokens", "repetition_penalty", "stop")


class GenerateRoute(HuggingFaceRoute):
    """`text_generation`."""

    path = "/hf/generate/{model}"
    task = TASK
    body = GenerationBody
    answer: ClassVar[Any] = list[Generated]
    summary = "Continue a prompt, for `InferenceClient.text_generation`."
    events = TOKEN_EVENTS
    only_streams: ClassVar[bool] = False
    """Whether responses are events without being requested."""

    def convert(self, body: GenerationBody, request: Request, service: Service) -> TaskRequest:
        """A request for the text, its details and its events."""
        if self.only_streams:
            body = body.model_copy(update={"stream": True})
        given = body.parameters or GenerationParameters()
        named = GenerateRequest(model=request.path_params.get("model"), prompts=[body.inputs])
        model = service.catalog.resolve(TASK, named)
        generation = model.manifest.generation
        return GeneratingRequest(
            self.task,
            _message(body, given, model),
            label_of(request),
            before=body.inputs if given.return_full_text else "",
            with_details=bool(given.details),
            ends=frozenset(generation.eos_token_ids if generation else ()),
            seed=given.seed,
        )

    def render(self, request: TaskRequest, response: TaskResponse) -> list[Generated] | Generated:
        """The client reads the first one."""
        assert isinstance(request, GeneratingRequest)
        (item,) = response.data
        text = request.before + item.text
        if not request.with_details:
            return [Generated(generated_text=text)]
        best, *others = item.alternatives or [item]
        samples = [
            OtherSequence(generated_text=request.before + other.text, **_sequence(other, request))
            for other in others
        ]
        details = Details(**_sequence(best, request), best_of_sequences=samples or None)
        return [Generated(generated_text=text, details=details)]

    def render_stream(self, request: TaskRequest) -> TokenEvents:
        assert isinstance(request, GeneratingRequest)
        return TokenEvents(request)


def _message(
    body: GenerationBody, given: GenerationParameters, model: LoadedModel
) -> GenerateRequest:
    """The task's message; `details` and events need log-probabilities."""
    best_of = given.best_of if (given.best_of or 1) > 1 else None
    is_scored = given.details or body.stream
    return GenerateRequest(
        model=model.name,
        prompts=[body.inputs],
        n=best_of if given.details and not body.stream else None,
        logprobs=(given.top_n_tokens or 0) if is_scored else None,
        stream=body.stream,
        **_structure(given),
        **_sampling(given, best_of, model),
        **{name: getattr(given, name) for name in _SAME_NAMES},
    )


def _structure(given: GenerationParameters) -> dict[str, Any]:
    """What the text must match."""
    grammar = given.grammar
    if grammar is None:
        return {}
    if isinstance(grammar, RegexGrammar):
        return {"regex": grammar.value}
    if isinstance(grammar, NamedJsonGrammar):
        return {"json_schema": grammar.value.schema_}
    return {"json_schema": grammar.value}


def _sampling(
    given: GenerationParameters, best_of: int | None, model: LoadedModel
) -> dict[str, Any]:
    """How tokens are chosen: sampled as in TGI, which a seed alone does not ask for."""
    if given.do_sample is False:
        return {"temperature": 0.0, "best_of": best_of}
    chosen = {name: getattr(given, name) for name in SAMPLING}
    is_asked = given.do_sample or best_of or any(value is not None for value in chosen.values())
    generation = model.manifest.generation
    is_default = generation is not None and generation.do_sample
    # One sample changes nothing but that tokens are sampled.
    samples = 1 if given.do_sample and best_of is None and given.temperature != 0 else best_of
    return {**chosen, "best_of": samples, "seed": given.seed if is_asked or is_default else None}


def _sequence(output: Generation | Continuation, request: GeneratingRequest) -> dict[str, Any]:
    """Fields of a `Sequence`."""
    scored = output.logprobs or []
    texts = _texts(output.text or "", scored)
    tokens = [
        request.token(one).model_copy(update={"text": text})
        for one, text in zip(scored, texts, strict=True)
    ]
    return {
        "finish_reason": request.reason(output.finish_reason, tokens[-1] if tokens else None),
        "generated_tokens": len(tokens),
        "seed": request.seed,
        "tokens": tokens,
        "top_tokens": [[request.token(top) for top in one.top] for one in scored]
        if any(one.top for one in scored)
        else None,
    }


def _texts(text: str, tokens: Sequence[TokenLogprob]) -> list[str]:
    """What each token writes of a text; the last one of a character's tokens has all of it."""
    places = [token.text_offset or 0 for token in tokens]
    spans = zip(tokens, places, [*places[1:], len(text)], strict=True)
    return [
        text[start:end] if is_part_of_character(token) else token.token
        for token, start, end in spans
    ]


class TokenEvents(Events):
    """One event a token; the last one has the whole text.

    A chunk's text is that of its tokens, except that an incomplete character or the possible
    beginning of a stop string waits for later tokens. The end token has no text.

    Args:
        request: What is answered.
    """

    def __init__(self, request: GeneratingRequest) -> None:
        self._request = request
        self._count = 0
        self._text = ""
        """All of it so far."""
        self._waiting = ""
        """Text without a token of its own, for the next one."""
        self._last: TokenLogprob | None = None

    def error_body(self, error: ServingError) -> HuggingFaceError:
        return error_body(error)

    def events(self, chunk: Chunk) -> Iterator[StreamEvent]:
        self._text += chunk.text
        text, self._waiting = self._waiting + chunk.text, ""
        tokens = chunk.logprobs or []
        is_last = chunk.finish_reason is not None
        if is_last and not tokens and self._last is not None:
            tokens = [self._last]  # of a sequence that was lost behind it
            self._count -= 1
        if not tokens:
            self._waiting = text
            return
        shares = list(zip(tokens, self._share_text(text, tokens), strict=True))
        for place, (token, own) in enumerate(shares):
            ends = is_last and place == len(shares) - 1
            yield self._event(token, own, chunk if ends else None)
        self._last = tokens[-1]

    def _event(self, found: TokenLogprob, text: str, last: Chunk | None) -> StreamEvent:
        """One event.

        Args:
            last: The chunk that ends the text.
        """
        self._count += 1
        token = self._request.token(found)
        return StreamEvent(
            index=self._count,
            token=token.model_copy(update={"text": text}),
            top_tokens=[self._request.token(top) for top in found.top] or None,
            generated_text=None if last is None else self._request.before + self._text,
            details=None if last is None else self._details(last, token),
        )

    def _details(self, last: Chunk, token: Token) -> StreamDetails:
        return StreamDetails(
            finish_reason=self._request.reason(last.finish_reason, token),
            generated_tokens=self._count,
            input_length=last.usage.prompt_tokens if last.usage else 0,
            seed=self._request.seed,
        )

    def _share_text(self, text: str, tokens: Sequence[TokenLogprob]) -> list[str]:
        """Each token's share of the text of all; the last one but the end token has the rest."""
        shares = [""] * len(tokens)
        ends = self._request.ends
        with_text = [i for i, token in enumerate(tokens) if token.token_id not in ends] or [0]
        for place in with_text[:-1]:
            piece = tokens[place].token
            share = next((p for p in (piece, piece.lstrip()) if text.startswith(p)), "")
            shares[place], text = share, text[len(share) :]
        shares[with_text[-1]] = text
        return shares
