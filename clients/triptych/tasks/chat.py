"""`chat`: the next message of a conversation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triptych.messages import (
    ClosedMessage,
    Generation,
    OneOrMany,
    OutputParameters,
    Response,
    StreamRequest,
    StructureParameters,
    TopLogProbs,
    optional,
)
from triptych.task import Command, Task
from triptych.tasks.generate import OneOrManyStops

MAX_MESSAGES = 4096
MAX_ROLE_CHARACTERS = 64
ROLES = ("system", "user", "assistant")
_ARROW = " => "

Role = Annotated[str, Field(min_length=1, max_length=MAX_ROLE_CHARACTERS)]


class ChatMessage(ClosedMessage):
    """One message of a conversation."""

    role: Role = Field(description="Usually system, user or assistant; the template decides.")
    content: str

    @classmethod
    def from_text(cls, text: str) -> ChatMessage:
        """A message as the command line writes it: `system => Be brief.`, or the user's text."""
        role, arrow, content = text.partition(_ARROW)
        if arrow and role in ROLES:
            return cls(role=role, content=content)
        return cls(role="user", content=text)


class ChatRequest(StreamRequest, StructureParameters, OutputParameters):
    """Request of `chat`. Parameters mean what they mean in `generate`.

    The messages are laid out by the checkpoint's own chat template, as `transformers` does it; a
    special token that a message writes out becomes that token. Images stand where messages have the
    model's `image_place`, e.g. `<image>`.
    """

    defaults = {"json_schema": ()}  # an empty schema is valid for any JSON

    messages: list[ChatMessage] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The conversation so far, in order."
    )
    images: OneOrMany | None = optional(
        "Images of the places in messages, in their order; for models that read images."
    )
    stop: OneOrManyStops | None = optional("Stop strings; the answer ends before the first one.")
    logprobs: TopLogProbs | None = optional(
        "Return log-probabilities of the tokens, and of this many most likely ones."
    )


class ChatResponse(Response[Generation]):
    """Response of `chat`; `data` has one item, the answer."""


TASK = Task(
    name="chat",
    summary="Answer a conversation, laid out by the model's own chat template.",
    request=ChatRequest,
    response=ChatResponse,
    inputs="messages",
    not_streamed=("num_beams", "length_penalty", "early_stopping", "n", "best_of"),
    command=Command(
        examples=(
            'triptych chat "Who wrote Don Quixote?" --stream',
            'triptych chat "<image> What is this?" --image cat.png',
            'triptych chat "system => Answer in one word." "Where is Toledo?" --temperature 0',
        )
    ),
    sample={"messages": [{"role": "user", "content": "{sentence}"}], "max_new_tokens": 16},
)
