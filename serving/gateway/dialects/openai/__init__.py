"""OpenAI's HTTP API: completions, chat completions and embeddings, one file each.

Fields that a route does not serve are refused by name. Parameters mean what they mean in the task
that answers; without sampling parameters, the checkpoint's own defaults hold.
"""

from __future__ import annotations

from serving.gateway.dialects.openai.chat import ChatRoute
from serving.gateway.dialects.openai.common import OpenAIRoute
from serving.gateway.dialects.openai.completions import CompletionsRoute
from serving.gateway.dialects.openai.embeddings import EmbeddingsRoute

ROUTES: tuple[type[OpenAIRoute], ...] = (ChatRoute, CompletionsRoute, EmbeddingsRoute)
"""Each with its own form of answers."""
