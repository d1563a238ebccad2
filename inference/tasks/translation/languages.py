"""Languages of translators: what a model reads and writes, and how a request names it.

A translator chooses its languages in one of four ways: it has one pair; it reads `>>xx<<` before a
sentence; it reads words before a sentence (`prefixes`); or a token of the source's language stands
in the source and the output begins with the target's (`LanguageTokens`). There is no default
source: a model would translate from the wrong language without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from inference.errors import BundleError, InvalidRequest
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import TaskConfig

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
                f"{model} does not translate into {code}; supported is: {self.target}", field=field
            )
        return own[0]

    def error(self, source: str | None, target: str | None, model: str) -> InvalidRequest | None:
        """Why requested languages do not fit; None where they do, or are not given."""
        try:
            for field, code in (("source", source), ("target", target)):
                if code is not None:
                    self.resolve(code, field, model)
        except InvalidRequest as error:
            return error
        return None

    @property
    def shown(self) -> dict[str, str]:
        """Own code → what a user may call the language: ISO 639-1 where that is not ambiguous."""
        short = {
            own[0]: code
            for code, own in self.aliases.items()
            if len(own) == 1 and len(code) == ISO_639_1
        }
        return {code: short.get(code, code) for code in self.codes}

    @property
    def spellings(self) -> dict[str, frozenset[str]]:
        """What a user may call the language (`shown`) → its ISO codes."""
        return {
            shown: frozenset(alias for alias, own in self.aliases.items() if code in own)
            for code, shown in self.shown.items()
        }


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


def target_prefixes(model: LoadedModel) -> tuple[str, ...]:
    """The `>>xx<<` that a model reads; none for models of one language."""
    tokenizer = model.manifest.tokenizer
    return tokenizer.target_prefixes if tokenizer else ()


def target_prefix(target: str | None, model: LoadedModel) -> str:
    """`>>xx<<` for the requested language, empty for models of one language."""
    prefixes = target_prefixes(model)
    if not prefixes or target is None:
        return ""
    prefix = f">>{target}<<"
    if prefix not in prefixes:
        known = ", ".join(sorted(known.strip("><") for known in prefixes))
        raise InvalidRequest(
            f"{model.name} does not translate into that language; supported are: {known}",
            field="target",
        )
    return prefix


class TranslateSection(TaskConfig):
    """Languages of a translator."""

    languages: tuple[tuple[str, str], ...] = ()
    """(source, target) pairs, ISO 639-1; empty where the checkpoint does not declare them, or
    translates between any two of `tokens`."""
    prefixes: dict[str, str] = {}
    """`source-target` of a pair → words before each sentence, e.g. `en-de`."""
    tokens: LanguageTokens | None = None
    """Tokens of a model of many languages."""

    @property
    def words(self) -> dict[tuple[str, str], str]:
        """Pair → words before each sentence."""
        return {pair: self.prefixes["-".join(pair)] for pair in self.languages if self.prefixes}

    def direction(
        self, source: str | None, target: str | None, model: LoadedModel
    ) -> LanguageEncoding:
        """How the languages of a request reach the model.

        Raises:
            InvalidRequest: a language is missing, unknown or ambiguous.
        """
        if self.tokens is not None:
            spec = model.manifest.tokenizer
            if spec is None or spec.eos_token_id is None:
                raise BundleError(f"{model.name}: its tokenizer has no end token: export it again")
            return token_direction(self.tokens, source, target, spec.eos_token_id, model.name)
        if self.prefixes:
            return prefix_direction(self.words, source, target, model.name)
        prefix = target_prefix(target, model)
        return LanguageEncoding(words=f"{prefix} " if prefix else "")

    def source(self, requested: str | None) -> str | None:
        """The language of the texts: as requested, or the only one that the model reads."""
        own = {source for source, _ in self.languages}
        return requested or (own.pop() if len(own) == 1 else None)

    def takes(self, source: str | None, target: str | None, model: str) -> bool:
        """Whether a model translates that pair; one without declared languages takes any."""
        if self.tokens is not None:
            return self.tokens.error(source, target, model) is None
        pairs = self.languages
        return not pairs or any(source in (None, a) and target in (None, b) for a, b in pairs)


def pair_refusal(
    source: str | None,
    target: str | None,
    models: Sequence[tuple[str, TranslateSection]],
    *,
    is_chosen: bool,
) -> InvalidRequest:
    """The error of a request for a pair that no model takes; lists what they take.

    Args:
        is_chosen: Whether the request names the model.
    """
    (name, section), *others = models
    if not others and section.tokens is not None:
        error = section.tokens.error(source, target, name)
        assert error is not None
        return error
    found = {"-".join(pair) for _, each in models for pair in each.languages}
    between = [
        f"any two of {len(each.tokens.codes)} languages by {model}"
        for model, each in models
        if each.tokens is not None
    ]
    pairs = ", ".join([*sorted(found), *between])
    message = (
        f"{name} translates {pairs} only"
        if is_chosen
        else f"no model translates between those languages; supported are: {pairs}"
    )
    return InvalidRequest(message, field="source" if target is None else "target")
