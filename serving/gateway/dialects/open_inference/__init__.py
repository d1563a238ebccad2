"""The Open Inference Protocol v2 over HTTP, as KServe and Triton speak it: one file a concern.

It serves the graphs of stateless models as they are, tensors in and tensors out, without a
tokenizer, an image recipe or a task. Generators, text and pictures have the other APIs. Decision
D106.
"""

from __future__ import annotations

from pydantic import BaseModel

from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.open_inference.dialect import OpenInferenceDialect
from serving.gateway.dialects.open_inference.tensors import InferBody
from serving.gateway.http.router import Routes

MESSAGES: tuple[type[BaseModel], ...] = (InferBody,)
"""Bodies of requests, for the OpenAPI document."""


def dialects(keys: Keys) -> list[Routes]:
    """The routes below `/v2`, but for the probes, which are the gateway's own.

    Args:
        keys: Required of every request, if there are any.
    """
    return [OpenInferenceDialect(keys)]
