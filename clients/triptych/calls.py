"""The verbs of the API as pure data: arguments in, a validated `Call` out; no I/O.

Each client binds these functions as its methods (`methods.py`), so that a verb's arguments are
written, documented and checked once for HTTP, asyncio and gRPC.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from triptych import images as pictures
from triptych import messages
from triptych.errors import InvalidArgument
from triptych.images import Image
from triptych.tasks.caption import CaptionRequest, CaptionResponse
from triptych.tasks.translate import TranslateRequest, TranslateResponse
from triptych.tasks.zero_shot import ZeroShotRequest, ZeroShotResponse

Answer_co = TypeVar("Answer_co", bound=BaseModel, covariant=True)
_Request = TypeVar("_Request", bound=BaseModel)


@dataclass(frozen=True)
class Call(Generic[Answer_co]):
    """One request and the type of its answer; `verb` names it over gRPC, `path` over HTTP."""

    verb: str
    path: str
    request: BaseModel | None
    answer: type[Answer_co]


def translate(
    texts: str | Iterable[str],
    *,
    source: str | None = None,
    target: str | None = None,
    model: str | None = None,
    num_beams: int | None = None,
    alternatives: int | None = None,
    length_penalty: float | None = None,
    return_alignment: bool | None = None,
) -> Call[TranslateResponse]:
    """Texts in another language, in the order given.

    Args:
        texts: One or many paragraphs; the server splits them into sentences and rejoins them.
        source: ISO 639-1, e.g. `es`.
        target: ISO 639-1, e.g. `en`.
        model: May be left out when only one fits.
        num_beams: Width of the search; the checkpoint's own by default.
        alternatives: How many translations to return, best first; at most `num_beams`.
        length_penalty: Exponent of the length by which scores are divided.
        return_alignment: Tell which source tokens each token looked at.

    Raises:
        TriptychError: See `triptych.errors`.
    """
    request = validated(
        TranslateRequest,
        texts=texts if isinstance(texts, str) else list(texts),
        source=source,
        target=target,
        model=model,
        num_beams=num_beams,
        alternatives=alternatives,
        length_penalty=length_penalty,
        return_alignment=return_alignment,
    )
    return Call("Translate", "/v1/translate", request, TranslateResponse)


def translate_stream(
    texts: str | Iterable[str],
    *,
    source: str | None = None,
    target: str | None = None,
    model: str | None = None,
) -> Call[messages.Chunk]:
    """Texts in another language, piece by piece as they are translated.

    Pieces of several texts come side by side, each with its text's `index`. Tokens are chosen one
    by one: beams cannot stream.

    Args:
        texts: One or many paragraphs.
        source: ISO 639-1, e.g. `es`.
        target: ISO 639-1, e.g. `en`.
        model: May be left out when only one fits.

    Raises:
        TriptychError: See `triptych.errors`; after the first piece nothing is tried again.
    """
    request = validated(
        TranslateRequest,
        texts=texts if isinstance(texts, str) else list(texts),
        source=source,
        target=target,
        model=model,
        num_beams=1,
        stream=True,
    )
    return Call("TranslateStream", "/v1/translate", request, messages.Chunk)


def caption(
    images: Image | Iterable[Image],
    *,
    prompt: str | None = None,
    model: str | None = None,
    num_beams: int | None = None,
    alternatives: int | None = None,
    max_new_tokens: int | None = None,
    return_attention: bool | None = None,
) -> Call[CaptionResponse]:
    """Pictures in words, in the order given.

    Args:
        images: One or many: paths, bytes, open files, Pillow images, data-URIs or base64.
        prompt: Words that the caption begins with.
        model: May be left out when only one fits.
        num_beams: Width of the search; the checkpoint's own by default.
        alternatives: How many captions to return, best first; at most `num_beams`.
        max_new_tokens: Where to stop at the latest.
        return_attention: Tell which patches of the picture each token looked at.

    Raises:
        TriptychError: See `triptych.errors`.
    """
    request = validated(
        CaptionRequest,
        images=_encoded(images),
        prompt=prompt,
        model=model,
        num_beams=num_beams,
        alternatives=alternatives,
        max_new_tokens=max_new_tokens,
        return_attention=return_attention,
    )
    return Call("Caption", "/v1/caption", request, CaptionResponse)


def caption_stream(
    images: Image | Iterable[Image],
    *,
    prompt: str | None = None,
    model: str | None = None,
    max_new_tokens: int | None = None,
) -> Call[messages.Chunk]:
    """Pictures in words, piece by piece as they are found.

    Pieces of several pictures come side by side, each with its picture's `index`. Tokens are chosen
    one by one: beams cannot stream.

    Args:
        images: One or many: paths, bytes, open files, Pillow images, data-URIs or base64.
        prompt: Words that the caption begins with.
        model: May be left out when only one fits.
        max_new_tokens: Where to stop at the latest.

    Raises:
        TriptychError: See `triptych.errors`; after the first piece nothing is tried again.
    """
    request = validated(
        CaptionRequest,
        images=_encoded(images),
        prompt=prompt,
        model=model,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        stream=True,
    )
    return Call("CaptionStream", "/v1/caption", request, messages.Chunk)


def zero_shot(
    images: Image | Iterable[Image],
    labels: Iterable[str],
    *,
    templates: str | Iterable[str] | None = None,
    model: str | None = None,
) -> Call[ZeroShotResponse]:
    """The labels that fit each picture, best first, for labels that no model was trained on.

    Args:
        images: One or many: paths, bytes, open files, Pillow images, data-URIs or base64.
        labels: What the pictures may show.
        templates: Sentences holding `{}`; several are averaged. "a photo of a {}" by default.
        model: May be left out when only one fits.

    Raises:
        TriptychError: See `triptych.errors`.
    """
    request = validated(
        ZeroShotRequest,
        images=_encoded(images),
        labels=[labels] if isinstance(labels, str) else list(labels),
        templates=[templates] if isinstance(templates, str) else templates and list(templates),
        model=model,
    )
    return Call("ZeroShot", "/v1/zero-shot", request, ZeroShotResponse)


def models() -> Call[messages.ModelList]:
    """What is served, with tasks, languages, precision and limits.

    Raises:
        TriptychError: See `triptych.errors`.
    """
    return Call("ListModels", "/v1/models", None, messages.ModelList)


def _encoded(images: Image | Iterable[Image]) -> list[str]:
    """Base64 of one or many. An open file is iterable, and so are bytes; both are one picture."""
    one = isinstance(images, str | bytes | bytearray | memoryview | os.PathLike)
    if one or hasattr(images, "read") or hasattr(images, "save"):
        return [pictures.encode(images)]  # type: ignore[arg-type]
    return [pictures.encode(image) for image in images]  # type: ignore[union-attr, arg-type]


def validated(request: type[_Request], **fields: Any) -> _Request:
    """A request of these fields.

    Raises:
        InvalidArgument: They break the rules of the message.
    """
    try:
        return request(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"{name}: {first['msg']}") from None
