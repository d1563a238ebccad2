"""Languages of translators: what a model reads and writes, and how a request names it.

A translator chooses its languages in one of four ways: it has one pair; it reads `>>xx<<` before a
sentence; it reads words before a sentence (`prefixes`); or a token of the source's language stands
in the source and the output begins with the target's (`LanguageTokens`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from inference.errors import InvalidRequest

ISO_639_1 = 2
"""Letters of its codes."""


class LanguageTokens(BaseModel):
    """Tokens that stand for languages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    codes: dict[str, int]
    """The model's own code, e.g. `eng_Latn`, → token."""
    aliases: dict[str, tuple[str, ...]] = {}
    """ISO 639-1 or 639-3 code → own codes; several where it is ambiguous."""
    place: Literal["before", "behind"]
    """Source: `[language] text </s>`, or `text </s> [language]`."""
    target: str | None = None
    """The only target language, which the decoder starts from; None: any, which a request's output
    begins with."""

    def resolve(self, code: str, field: str, model: str) -> str:
        """The model's own code of a language.

        Args:
            code: As requested.
            field: `source` or `target`, for the error.
            model: Its name, for the error.

        Raises:
            InvalidRequest: unknown, or ambiguous.
        """
        own = (code,) if code in self.codes else self.aliases.get(code.lower(), ())
        if len(own) > 1:
            raise InvalidRequest(
                f"{field} {code} is ambiguous for {model}: give one of {', '.join(own)}",
                field=field,
            )
        if not own:
            known = ", ".join(self.codes)
            raise InvalidRequest(
                f"{model} does not have that language; supported are: {known}", field=field
            )
        if field == "target" and self.target not in (None, own[0]):
            raise InvalidRequest(
                f"{model} does not translate into {code}; supported is: {self.target}",
                field=field,
            )
        return own[0]

    @property
    def shown(self) -> dict[str, str]:
        """Own code → what a user may call the language: ISO 639-1 where that is not ambiguous."""
        short = {
            own[0]: code
            for code, own in self.aliases.items()
            if len(own) == 1 and len(code) == ISO_639_1
        }
        return {code: short.get(code, code) for code in self.codes}


@dataclass(frozen=True)
class LanguagePairs:
    """The pairs of languages that a model translates: any source with any other target.

    A model of several pairs has one of these for each.
    """

    sources: frozenset[str]
    targets: frozenset[str]

    def __contains__(self, pair: tuple[str, str]) -> bool:
        source, target = pair
        return source != target and source in self.sources and target in self.targets


def directions_of(
    pairs: Iterable[tuple[str, str]], tokens: LanguageTokens | None
) -> tuple[LanguagePairs, ...]:
    """What a translator declares; empty for one that declares nothing."""
    if tokens is None:
        return tuple(LanguagePairs(frozenset((a,)), frozenset((b,))) for a, b in pairs)
    shown = tokens.shown
    targets = shown.values() if tokens.target is None else (shown[tokens.target],)
    return (LanguagePairs(frozenset(shown.values()), frozenset(targets)),)


@dataclass(frozen=True)
class LanguageEncoding:
    """How the sentences of a request become sources, and what their outputs begin with."""

    words: str = ""
    """Before each sentence."""
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    """Tokens around a sentence; of a model with language tokens, instead of the tokenizer's own."""
    has_own_tokens: bool = False
    """Whether `before` and `behind` replace the tokenizer's special tokens."""
    forced_bos_token_id: int | None = None


def token_direction(
    tokens: LanguageTokens, source: str | None, target: str | None, end: int, model: str
) -> LanguageEncoding:
    """The direction of a model with language tokens.

    Args:
        end: The end token.

    Raises:
        InvalidRequest: a language is missing, unknown or ambiguous.
    """
    target = target or tokens.target
    for field, code in (("source", source), ("target", target)):
        if code is None:
            raise InvalidRequest(
                f"{model} translates between many languages: give {field}, "
                f"one of {', '.join(tokens.codes)}",
                field=field,
            )
    assert source is not None
    assert target is not None
    read = tokens.codes[tokens.resolve(source, "source", model)]
    written = tokens.codes[tokens.resolve(target, "target", model)]
    forced = written if tokens.target is None else None
    if tokens.place == "before":
        return LanguageEncoding("", (read,), (end,), True, forced)
    return LanguageEncoding("", (), (end, read), True, forced)


def prefix_direction(
    prefixes: Mapping[tuple[str, str], str], source: str | None, target: str | None, model: str
) -> LanguageEncoding:
    """The direction of a model that reads in words what to translate into what.

    Args:
        prefixes: (source, target) → the words.

    Raises:
        InvalidRequest: the languages fit no pair, or several.
    """
    fitting = [pair for pair in prefixes if source in (None, pair[0]) and target in (None, pair[1])]
    if len(fitting) != 1:
        pairs = ", ".join("-".join(pair) for pair in fitting or prefixes)
        problem = (
            "translates between several languages" if fitting else "translates other languages"
        )
        missing = "source" if source is None and target is not None else "target"
        raise InvalidRequest(
            f"{model} {problem}: give source and target, one pair of {pairs}", field=missing
        )
    return LanguageEncoding(words=prefixes[fitting[0]])
