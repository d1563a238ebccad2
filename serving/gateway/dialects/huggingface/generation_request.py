"""A request of `text_generation` with what its answers need."""

from __future__ import annotations

from dataclasses import dataclass

from serving.gateway.dialects.huggingface.generation_messages import Reason, Token
from serving.gateway.requests.task_request import TaskRequest
from triptych.messages import TokenLogprob, TopToken


@dataclass(frozen=True)
class GeneratingRequest(TaskRequest):
    """A task request with what only this route reads."""

    before: str = ""
    """The prompt, where it is returned with the text."""
    with_details: bool = False
    ends: frozenset[int] = frozenset()
    """The tokens that end a text."""
    most: int | None = None
    """Tokens after which a text is cut, by the request or the checkpoint."""
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
