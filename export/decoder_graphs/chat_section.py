"""The chat template of a checkpoint, for the section `chat` of the manifest.

Found as `transformers` finds it: `chat_template.jinja`, else `chat_template` of
`chat_template.json` (older processors) or of `tokenizer_config.json`, which is one template or a
list of named ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from export.architecture import Section, no_section
from export.checkpoint.checkpoint import Checkpoint
from export.tokenizer.prompt_images import image_tokens
from export.tokenizer.tokenizer_json import SETTINGS
from inference.errors import CheckpointError, InvalidRequest
from inference.processing.templates.chat_template import ChatTemplate, UnusableTemplate

FILE = "chat_template.jinja"
OLDER_FILE = "chat_template.json"
OLDER_TOKENS = "special_tokens_map.json"
DEFAULT = "default"
_MESSAGE = {"role": "user", "content": "Hello"}
"""The simplest conversation."""
_MAX_CHARACTERS = 200_000
"""Of its text."""
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def chat_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Template and special tokens; None for a checkpoint without a template.

    Raises:
        CheckpointError: a template that does not compile, or that cannot render one message.
    """
    source = _template(checkpoint)
    if source is None:
        return None
    tokens = _special_tokens(checkpoint)
    try:
        text = ChatTemplate(source, tokens).render([_MESSAGE], _MAX_CHARACTERS)
    except UnusableTemplate as error:
        raise _unusable(checkpoint, f"it does not compile: {error}") from None
    except InvalidRequest as error:
        raise _unusable(checkpoint, f"for the one message {_MESSAGE}, {error.message}") from None
    if _MESSAGE["content"] not in text:
        raise _unusable(checkpoint, f"it leaves out what the one message {_MESSAGE} says")
    return {"template": source, "special_tokens": tokens}


def image_chat_section(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """The section of a model whose conversations hold images as parts of messages.

    Its template writes the token of an image where a part is one. A template that writes none takes
    messages of text alone.

    Raises:
        CheckpointError: see `chat_section`; the tokenizer has no token for an image.
    """
    source = _template(checkpoint)
    if source is None:
        return None
    if _with_image(source, network, checkpoint) is None:
        return chat_section(network, checkpoint)
    tokens = _special_tokens(checkpoint)
    return {"template": source, "special_tokens": tokens, **image_tokens(network, checkpoint)}


def image_caption_section(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of `caption`: an instruction in the chat template, where that takes images.

    Raises:
        CheckpointError: the tokenizer has no token for an image.
    """
    source, places = _template(checkpoint), image_tokens(network, checkpoint)
    text = None if source is None else _with_image(source, network, checkpoint)
    if text is None:
        return places
    begin = _special_tokens(checkpoint).get("bos_token")
    is_complete = begin is not None and text.startswith(begin)
    before, _, behind = text.partition(_MESSAGE["content"])
    return {**places, "layout": (before, behind), "is_complete": is_complete}


def _with_image(source: str, network: Any, checkpoint: Checkpoint) -> str | None:
    """What a template writes of a message with an image; None where it takes none."""
    place = image_tokens(network, checkpoint)["images"]["place"]
    content = [{"type": "image"}, {"type": "text", "text": _MESSAGE["content"]}]
    try:
        template = ChatTemplate(source, _special_tokens(checkpoint))
        text = template.render([{"role": "user", "content": content}], _MAX_CHARACTERS)
    except (UnusableTemplate, InvalidRequest):
        return None
    is_written = text.count(place) == text.count(_MESSAGE["content"]) == 1
    return text if is_written else None


LANGUAGE_TASKS: Mapping[str, Section] = {"generate": no_section, "chat": chat_section}
"""Tasks of a language model; `chat` where its checkpoint has a template."""


def _unusable(checkpoint: Checkpoint, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.folder}: the chat template cannot be used: {reason}. Correct it, or remove "
        "it to export the model without chat"
    )


def _template(checkpoint: Checkpoint) -> str | None:
    """The default template's source."""
    if checkpoint.has(FILE):
        return (checkpoint.folder / FILE).read_text(encoding="utf-8")
    given = checkpoint.json(OLDER_FILE).get("chat_template")
    given = checkpoint.json(SETTINGS).get("chat_template") if given is None else given
    if isinstance(given, list):
        named = {entry.get("name"): entry.get("template") for entry in given}
        given = named.get(DEFAULT)
    return given if isinstance(given, str) else None


def _special_tokens(checkpoint: Checkpoint) -> dict[str, str]:
    """`bos_token` and the like, as a template may name them."""
    settings = checkpoint.json(OLDER_TOKENS) | checkpoint.json(SETTINGS)
    found = {}
    for name in (f"{kind}_token" for kind in _TOKENS):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str):
            found[name] = text
    return found
