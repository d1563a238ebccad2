"""TGI's events of a stream: one a token, whose texts make up the generated text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inference.errors import ServingError
from serving.gateway.dialects.all_or_nothing import refused
from serving.gateway.dialects.huggingface.error_bodies import error_body
from serving.gateway.dialects.huggingface.generation_messages import (
    StreamDetails,
    StreamEvent,
    Token,
)
from serving.gateway.dialects.huggingface.generation_request import GeneratingRequest
from triptych.messages import Chunk, TokenLogprob


class TokenEvents:
    """Server-sent events; implements `StreamRenderer`.

    A chunk's text is that of its tokens, except that an incomplete character or the possible
    beginning of a stop string waits for later tokens. The end token has no text.

    Args:
        request: What is answered.
    """

    media_type = "text/event-stream"

    def __init__(self, request: GeneratingRequest) -> None:
        self._request = request
        self._count = 0
        self._text = ""
        """All of it so far."""
        self._waiting = ""
        """Text without a token of its own, for the next one."""
        self._held: TokenLogprob | None = None
        """The last token, until the chunk that ends the text: the last event has both."""
        self._last: TokenLogprob | None = None

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """One event a token."""
        return b"".join(part for chunk in chunks for part in self._rendered(chunk))

    def end(self) -> bytes:
        """Nothing: the last event has the whole text."""
        return b""

    def error(self, error: ServingError) -> bytes:
        """An event with the error, which the client raises."""
        return b"data: %b\n\n" % error_body(error).model_dump_json().encode()

    def _rendered(self, chunk: Chunk) -> Iterator[bytes]:
        if chunk.error is not None:
            yield self.error(refused(chunk.error))
            return
        self._text += chunk.text
        text, self._waiting = self._waiting + chunk.text, ""
        tokens = ([self._held] if self._held else []) + (chunk.logprobs or [])
        self._held = None
        is_last = chunk.finish_reason is not None
        if is_last and not tokens and self._last is not None:
            tokens = [self._last]  # the text that remained belongs to it
            self._count -= 1
        if not tokens:
            self._waiting = text
            return
        shares = list(zip(tokens, self._spread(text, tokens), strict=True))
        is_full = self._count + len(tokens) == self._request.most
        if not is_last and (is_full or self._is_end(tokens[-1])):
            self._held, self._waiting = shares.pop()
        for place, (token, own) in enumerate(shares):
            ends = is_last and place == len(shares) - 1
            yield b"data: %b\n\n" % self._event(token, own, chunk if ends else None)
        self._last = tokens[-1]

    def _event(self, found: TokenLogprob, text: str, last: Chunk | None) -> bytes:
        """One event.

        Args:
            last: The chunk that ends the text.
        """
        self._count += 1
        token = self._request.token(found)
        event = StreamEvent(
            index=self._count,
            token=token.model_copy(update={"text": text}),
            top_tokens=[self._request.token(top) for top in found.top] or None,
            generated_text=None if last is None else self._request.before + self._text,
            details=None if last is None else self._details(last, token),
        )
        return event.model_dump_json().encode()

    def _details(self, last: Chunk, token: Token) -> StreamDetails:
        return StreamDetails(
            finish_reason=self._request.reason(last.finish_reason, token),
            generated_tokens=self._count,
            input_length=last.usage.prompt_tokens if last.usage else 0,
            seed=self._request.seed,
        )

    def _is_end(self, token: TokenLogprob) -> bool:
        return token.token_id in self._request.ends

    def _spread(self, text: str, tokens: Sequence[TokenLogprob]) -> list[str]:
        """Each token's share of the text of all; the last one but the end token has the rest."""
        shares = [""] * len(tokens)
        with_text = [i for i, token in enumerate(tokens) if not self._is_end(token)] or [0]
        for place in with_text[:-1]:
            piece = tokens[place].token
            share = next((p for p in (piece, piece.lstrip()) if text.startswith(p)), "")
            shares[place], text = share, text[len(share) :]
        shares[with_text[-1]] = text
        return shares
