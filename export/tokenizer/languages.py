"""The languages of a translator, as fields of its section in the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from export.checkpoint.checkpoint import Checkpoint
from export.tokenizer.iso639 import spellings
from export.tokenizer.tokenizer import SETTINGS, special_tokens
from inference.errors import CheckpointError
from inference.tasks.translation.languages import LanguageTokens

_TRANSLATION = re.compile(r"translation_([a-z]{2,3})_to_([a-z]{2,3})")
_CODE = re.compile(
    r"(?P<bare>[a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))|__(?P<underlined>[a-z]{2,3})__"
)
"""`en_XX` and `eng_Latn` are languages' own codes; `__en__` is the token of `en`."""
_BEHIND = {"MBartTokenizer", "MBartTokenizerFast"}
"""Tokenizers of `text </s> [language]`; the others write the language in front."""


def translation_prefixes(config: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(source, target) → the words before a text, of `task_specific_params` in `config.json`."""
    found = {}
    for task, parameters in (config.get("task_specific_params") or {}).items():
        named = _TRANSLATION.fullmatch(task)
        if named and isinstance(parameters, Mapping) and parameters.get("prefix"):
            found[named[1], named[2]] = str(parameters["prefix"])
    return found


def prefix_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a model that reads in words what to translate into what."""
    prefixes = translation_prefixes(checkpoint.config)
    return {
        "languages": tuple(prefixes),
        "prefixes": {f"{source}-{target}": text for (source, target), text in prefixes.items()},
    }


def token_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a model with language tokens.

    Raises:
        CheckpointError: the tokenizer has no token of a language, or the network no row for one.
    """
    codes = {}
    for text, number in special_tokens(checkpoint).items():
        if named := _CODE.fullmatch(text):
            codes[named["bare"] or named["underlined"]] = number
    size = checkpoint.config["vocab_size"]
    beyond = [code for code, number in codes.items() if number >= size]
    if not codes or beyond:
        problem = f"no row for the token of {beyond[0]}" if beyond else "no language tokens"
        raise CheckpointError(
            f"{checkpoint.folder}: the model has {problem}, so it cannot translate"
        )
    place = _place(checkpoint)
    target = _decoder_start(checkpoint, codes) if place == "behind" else None
    tokens = LanguageTokens(
        codes=dict(sorted(codes.items())), aliases=aliases(codes), place=place, target=target
    )
    return {"tokens": tokens.model_dump(exclude_none=True)}


def aliases(codes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """ISO code → the model's own codes of that language, e.g. zh → zho_Hans, zho_Hant."""
    found: dict[str, tuple[str, ...]] = {}
    for code in sorted(codes):
        for spelling in spellings(code.partition("_")[0]):
            found[spelling] = (*found.get(spelling, ()), code)
    return {alias: own for alias, own in sorted(found.items()) if own != (alias,)}


def _place(checkpoint: Checkpoint) -> Literal["before", "behind"]:
    """Where the source's language stands, as `transformers`' class of the tokenizer puts it."""
    settings = checkpoint.json(SETTINGS)
    own = settings.get("tokenizer_class") or checkpoint.config.get("tokenizer_class")
    if own is None and checkpoint.config.get("model_type") == "mbart":
        own = "MBartTokenizer"  # what `AutoTokenizer` takes
    is_behind = own in _BEHIND or settings.get("legacy_behaviour") is True
    return "behind" if is_behind else "before"


def _decoder_start(checkpoint: Checkpoint, codes: Mapping[str, int]) -> str | None:
    """The language that the decoder starts from, where it starts from one."""
    start = checkpoint.json("generation_config.json").get("decoder_start_token_id")
    start = checkpoint.config.get("decoder_start_token_id") if start is None else start
    return next((code for code, number in codes.items() if number == start), None)
