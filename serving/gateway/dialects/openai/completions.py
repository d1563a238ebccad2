"""`POST /v1/completions`: prompts continued, by the models that serve `generate`."""

from __future__ import annotations

from collections.abc import Sequence

from inference.tasks.generate import TASK
from serving.gateway.dialects.all_or_nothing import AnyToken
from serving.gateway.dialects.openai.common import (
    CompletionUsage,
    Events,
    OpenAIDialect,
    StreamableRequest,
    escaped,
    response_fields,
)
from serving.gateway.dialects.openai.completion_messages import (
    DEFAULT_TOKENS,
    Completion,
    CompletionChoice,
    CompletionRequest,
    Logprobs,
)
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import Chunk, Continuation, Generation, PromptLogprob, TokenLogprob
from triptych.tasks.generate import GenerateRequest

_PREFIX = "cmpl"


class CompletionEvents(Events):
    """`text_completion` events; the index of a choice is that of its prompt."""

    prefix = _PREFIX

    def event(self, chunk: Chunk) -> Completion:
        """See `Events.event`."""
        choice = CompletionChoice(
            index=chunk.index,
            text=chunk.text,
            finish_reason=chunk.finish_reason,
            logprobs=None if chunk.logprobs is None else _logprobs(chunk.logprobs),
        )
        return Completion(**self.common, choices=[choice])

    def usage_event(self, usage: CompletionUsage) -> Completion:
        """See `Events.usage_event`."""
        return Completion(**self.common, choices=[], usage=usage)


class CompletionsDialect(OpenAIDialect):
    """Completions."""

    path = "/v1/completions"
    task = TASK
    request = CompletionRequest
    response = Completion
    name = "completions"
    summary = "Continue prompts, in the form of OpenAI's API."
    events = "`text_completion` events."
    parameters = {"prompts": "prompt", "max_new_tokens": "max_tokens"}

    def convert(self, body: CompletionRequest, service: Service) -> TaskRequest:
        """The body in the task's terms."""
        message = GenerateRequest(
            prompts=body.prompt,
            max_new_tokens=body.max_tokens or DEFAULT_TOKENS,
            logprobs=body.logprobs,
            echo=body.echo,
            **body.parameters,
        )
        return StreamableRequest(TASK, message, self.path, includes_usage=body.includes_usage)

    def answered(self, request: TaskRequest, response: TaskResponse) -> Completion:
        """A `text_completion`: the outputs of the first prompt, then those of the next one."""
        choices: list[CompletionChoice] = []
        for item in response.data:
            choices += _choices(item, len(choices))
        return Completion(
            **response_fields(_PREFIX, response.model),
            choices=choices,
            usage=CompletionUsage.of(response.usage),
        )

    def render_stream(self, request: TaskRequest) -> CompletionEvents:
        """`text_completion` events."""
        return CompletionEvents(request, self.parameters)


def _choices(item: Generation, first: int) -> list[CompletionChoice]:
    """The outputs for one prompt.

    Args:
        first: Index of the first one.
    """
    echoed = item.prompt_logprobs or ()
    outputs: Sequence[Generation | Continuation] = item.alternatives or [item]
    return [
        CompletionChoice(
            index=first + number,
            text=output.text or "",
            finish_reason=output.finish_reason or "stop",
            logprobs=None if output.logprobs is None else _logprobs([*echoed, *output.logprobs]),
        )
        for number, output in enumerate(outputs)
    ]


def _logprobs(tokens: Sequence[TokenLogprob | PromptLogprob]) -> Logprobs:
    return Logprobs(
        tokens=list(map(_name, tokens)),
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[_alternatives(one) if one.top else None for one in tokens]
        if any(one.top for one in tokens)
        else None,
        text_offset=[one.text_offset or 0 for one in tokens],
    )


def _name(found: AnyToken) -> str:
    """A token's text; its bytes where it is a part of a character, as in OpenAI's API."""
    part = escaped(found)
    return found.token if part is None else f"bytes:{part}"


def _alternatives(chosen: TokenLogprob | PromptLogprob) -> dict[str, float]:
    """The best tokens of a position by their names, of which several may be equal.

    The chosen token has its name, else the best one has it; others are `token_id:N`, as vLLM names
    tokens by their ids.
    """
    owners = {_name(top): top.token_id for top in reversed(chosen.top)}
    if any(top.token_id == chosen.token_id for top in chosen.top):
        owners[_name(chosen)] = chosen.token_id
    found = {}
    for top in chosen.top:
        name = _name(top)
        key = name if owners[name] == top.token_id else f"token_id:{top.token_id}"
        found[key] = top.logprob
    return found
