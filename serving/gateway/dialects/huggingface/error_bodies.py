"""Errors as `huggingface_hub` shows them: `{"error": "…", "error_type": "…"}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel

from inference.errors import DeadlineExceeded, InternalError, InvalidRequest, ServingError
from serving.gateway.http.http_errors import json_error

PARAMETERS: Mapping[str, str] = {
    "prompts": "inputs",
    "texts": "inputs",
    "images": "inputs",
    "source": "src_lang",
    "target": "tgt_lang",
    "labels": "candidate_labels",
    "pairs": "candidate_labels",
    "templates": "hypothesis_template",
    "aggregation": "aggregation_strategy",
    "n": "best_of",
}
"""Field of a task's message → its name in this API."""


class HuggingFaceError(BaseModel):
    """Body of every response with a status of 400 or more."""

    error: str
    error_type: str


def error_body(error: ServingError, names: Mapping[str, str] = PARAMETERS) -> HuggingFaceError:
    """The body of a failed request; `text_generation` of the client chooses a class by the type."""
    return HuggingFaceError(error=_message(error, names), error_type=_type(error))


def error_response(error: ServingError, names: Mapping[str, str] = PARAMETERS) -> Response:
    """The response of a failed request."""
    return json_error(error, error_body(error, names).model_dump_json())


def _type(error: ServingError) -> str:
    """TGI's names `validation`, `generation` and `overloaded`; of other errors our own."""
    if isinstance(error, InvalidRequest):
        return "validation"
    return "generation" if isinstance(error, DeadlineExceeded | InternalError) else error.wire


def _message(error: ServingError, names: Mapping[str, str]) -> str:
    """The message with the field's name in this API; it is the only place that names the field."""
    if error.field is None:
        return error.message
    name, _, rest = error.field.partition(".")
    given = names.get(name)
    if given is None:
        return error.message
    if rest:
        # A request has one text, image and template, or several labels and texts.
        is_one = rest == "0" and given in ("inputs", "hypothesis_template")
        renamed = given if is_one else f"{given}.{rest}"
        return error.message.replace(error.field, renamed)
    # "texts" may also be a word of the message; a parameter is not.
    if given != "inputs" or error.message.startswith(name):
        return re.sub(rf"\b{name}\b", given, error.message, count=1)
    return error.message
