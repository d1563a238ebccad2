"""OpenAI's HTTP API: completions, chat completions and embeddings, one file each.

Fields that a route does not serve are refused by name. Parameters mean what they mean in the task
that answers; without sampling parameters, the checkpoint's own defaults hold.
"""

from __future__ import annotations

from pydantic import BaseModel

from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.openai.chat import ChatRoute
from serving.gateway.dialects.openai.chat_messages import ChatCompletionRequest
from serving.gateway.dialects.openai.common import OpenAIRoute
from serving.gateway.dialects.openai.completions import CompletionRequest, CompletionsRoute
from serving.gateway.dialects.openai.embeddings import EmbeddingRequest, EmbeddingsRoute

MESSAGES: tuple[type[BaseModel], ...] = (ChatCompletionRequest, CompletionRequest, EmbeddingRequest)
"""Bodies of requests, for the OpenAPI document."""


def dialects(keys: Keys) -> list[OpenAIRoute]:
    """All routes, each with its own form of answers.

    Args:
        keys: Required of every request, if there are any.
    """
    return [ChatRoute(keys), CompletionsRoute(keys), EmbeddingsRoute(keys)]
