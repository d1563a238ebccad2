"""Grammars of outputs, by llguidance: choices, regular expressions and JSON schemas.

Each step is bounded by llguidance's own counts of work, which do not depend on the machine, and so
is most of compiling; the rest (patterns of which all must match) by a time. What exceeds them is
refused. References to other documents are never fetched.

A grammar's state is beside the search, so a step costs no round trip, and the other rules, sampling
and log-probabilities work on what it allows. Beams would need a state each: they are refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from tokenizers import Tokenizer

from inference.bundle.manifest import Bundle
from inference.errors import InvalidRequest, Overloaded
from inference.generation import Generation
from inference.processing.tokenizer import ByteTokenizer
from inference.processing.tokenizer_kinds import load_tokenizer


class GrammarVocabulary:
    """What llguidance reads of a vocabulary that is not of bytes.

    Args:
        tokens: Bytes of each token; None for special tokens.
        end: An end token.
    """

    def __init__(self, tokens: Sequence[bytes | None], end: int) -> None:
        self.tokens = [token or b"" for token in tokens]
        self.special_token_ids = [number for number, token in enumerate(tokens) if token is None]
        self.eos_token_id = end
        self.bos_token_id = None
        self._ids = {token: number for number, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)

    def writes(self, text: bytes) -> bool:
        """Whether tokens can begin a text; bytes that follow it may be part of its last token."""
        places = range(1, min(self._longest, len(text)) + 1)
        if any(text[:place] in self._ids for place in places):
            return True
        return any(token.startswith(text) for token in self._ids)

    def check(self, text: bytes, field: str) -> None:
        """Raises InvalidRequest where the tokens cannot write a text."""
        written = b"".join(self.tokens[number] for number in self(text))
        if written != text:
            shown = text.decode(errors="replace")[:40]
            raise InvalidRequest(
                f"{field}: the model's vocabulary cannot write {shown!r}", field=field
            )

    def __call__(self, text: bytes) -> list[int]:
        """Ids of exactly these bytes, the longest token first; bytes without a token are skipped.

        The tokenizer's own would put a space in front.
        """
        ids, place = [], 0
        while place < len(text):
            for length in range(min(self._longest, len(text) - place), 0, -1):
                number = self._ids.get(text[place : place + length])
                if number is not None:
                    ids.append(number)
                    place += length - 1
                    break
            place += 1
        return ids


def library_tokenizer(bundle: Bundle, vocabulary: GrammarVocabulary, ends: list[int]) -> Any:
    """Llguidance's tokenizer, by its own reader for vocabularies of bytes.

    That refuses a file with more tokens than the model scores.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    spec = bundle.manifest.tokenizer
    assert spec is not None
    if "tokenizer" in spec.files:
        text = (bundle.folder / spec.files["tokenizer"]).read_text(encoding="utf-8")
        is_of_bytes = (json.loads(text).get("decoder") or {}).get("type") == "ByteLevel"
        last = max(Tokenizer.from_str(text).get_vocab().values(), default=0)
        if is_of_bytes and last < len(vocabulary.tokens):
            return LLTokenizer(text, n_vocab=len(vocabulary.tokens), eos_token=ends)
    wrapper = TokenizerWrapper(vocabulary)
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), eos_token=ends)


CACHED_GRAMMARS = 64
COMPILE_LIMIT_S = 2.0
CACHED_BANS = 256
"""Of one grammar: states of one kind, such as the inside of a string, ban the same tokens."""
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"( |\n {0,16})?"}
"""Between the parts of a JSON text: nothing, a space, or a line break and an indent. With any
whitespace, a model that does not know JSON would write nothing else."""
_MESSAGE = 200


@dataclass(frozen=True)
class GrammarSource:
    """What an output must match: one of the three.

    Attributes:
        choices: One of these texts.
        regex: A regular expression, over the whole output; Rust's syntax without look-around.
        json_schema: JSON text.
    """

    choices: tuple[str, ...] = ()
    regex: str | None = None
    json_schema: str | None = None
    allows_space: bool = False
    """One space may stand in front."""

    @property
    def field(self) -> str:
        """The name of the one that is given."""
        if self.choices:
            return "choices"
        return "regex" if self.regex is not None else "json_schema"


class GrammarCompiler:
    """Compiles grammars for one bundle's vocabulary. Thread-safe; equal ones are compiled once.

    Args:
        bundle: Its tokenizer is read at the first grammar.
        limit_s: Seconds for one grammar.
    """

    def __init__(self, bundle: Bundle, limit_s: float = COMPILE_LIMIT_S) -> None:
        self._bundle = bundle
        self._limit_s = limit_s
        self._late: threading.Thread | None = None
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._vocabulary = GrammarVocabulary((), 0)
        self._drops_space = False
        self._grammars: LRUCache[GrammarSource, LlGrammar] = LRUCache(CACHED_GRAMMARS)

    def compile(self, source: GrammarSource) -> LlGrammar:
        """The grammar.

        Raises:
            InvalidRequest: it is malformed, too complex, matches nothing, or the model has no
                tokenizer that grammars can be compiled for.
            Overloaded: one that takes too long is still being compiled.
        """
        with self._lock:
            if source not in self._grammars:
                self._read_tokenizer(source.field)
                self._grammars[source] = self._within_time(source)
            return self._grammars[source]

    def compile_rules(self, rules: Generation) -> LlGrammar:
        """The grammar of a request's rules.

        Raises:
            InvalidRequest: as `compile`.
        """
        source = GrammarSource(
            rules.choices or (), rules.regex, rules.json_schema, allows_space=rules.allows_space
        )
        return self.compile(source)

    def _read_tokenizer(self, field: str) -> None:
        if self._tokenizer is not None:
            return
        manifest = self._bundle.manifest
        tokenizer = cast(ByteTokenizer | None, load_tokenizer(self._bundle))
        size = manifest.vocabulary_size or 0
        tokens = None if tokenizer is None else tokenizer.token_bytes(size)
        if tokens is None or tokenizer is None or manifest.generation is None:
            raise InvalidRequest(f"{manifest.name} takes no {field}: leave it out", field=field)
        ends = list(manifest.generation.eos_token_ids) or [manifest.generation.pad_token_id]
        self._vocabulary = GrammarVocabulary(tokens, ends[0])
        self._tokenizer = library_tokenizer(self._bundle, self._vocabulary, ends)
        # Decoders like sentencepiece's drop the space of a text's first token.
        words = [n for n, token in enumerate(tokens) if token and token[:1] == b" " != token]
        self._drops_space = bool(words) and not tokenizer.decode(words[:1]).startswith(" ")

    def _within_time(self, source: GrammarSource) -> LlGrammar:
        """Compiles in a thread, which cannot be ended: only one may outlast its time."""
        if self._late is not None and self._late.is_alive():
            raise Overloaded("another grammar is still being compiled", retry_after_s=1)
        outcome: list[LlGrammar | Exception] = []

        def compile_it() -> None:
            try:
                outcome.append(self._compile(source))
            except Exception as error:  # for the thread that waits
                outcome.append(error)

        worker = threading.Thread(target=compile_it, name="grammar", daemon=True)
        worker.start()
        worker.join(self._limit_s)
        if not outcome:
            self._late = worker
            raise _refusal(source, f"it takes longer than {self._limit_s:g} s to compile")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _compile(self, source: GrammarSource) -> LlGrammar:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=200_000,
            step_lexer_fuel=50_000,
            step_max_items=10_000,
            max_items_in_row=1000,
            max_lexer_states=50_000,
            max_grammar_size=200_000,
        )
        has_space = source.allows_space or self._drops_space
        for choice in source.choices:
            self._vocabulary.check(choice.encode(), source.field)
        try:
            grammar = _lark(source, has_space=has_space)
        except ValueError as error:
            raise _refusal(source, str(error)) from None
        matcher = LLMatcher(
            self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits
        )
        if matcher.is_error():
            raise _refusal(source, matcher.get_error())
        compiled = LlGrammar(matcher, self._vocabulary, source.field)
        state = compiled.start()
        if len(state.find_banned()) == compiled.vocabulary_size or state.is_complete:
            raise _refusal(source, "no output can match it")
        return compiled


class LlGrammar:
    """See `inference.engine.request.Grammar`.

    Args:
        matcher: llguidance's, without tokens.
        field: The request's field, for errors.
    """

    def __init__(self, matcher: Any, vocabulary: GrammarVocabulary, field: str) -> None:
        self._matcher = matcher
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary.tokens)
        self.field = field
        self._bans: LRUCache[bytes, NDArray[np.int64]] = LRUCache(CACHED_BANS)

    def start(self) -> LlState:
        return LlState(self, self._matcher.deep_copy())

    def find_banned(self, mask: bytes) -> NDArray[np.int64]:
        """Tokens whose bit is not set."""
        found = self._bans.get(mask)
        if found is None:
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            found = np.flatnonzero(bits[: self.vocabulary_size] == 0).astype(np.int64)
            self._bans[mask] = found
        return found


class LlState:
    """A `GrammarState` over llguidance's matcher."""

    def __init__(self, grammar: LlGrammar, matcher: Any) -> None:
        self._grammar, self._matcher = grammar, matcher

    def find_banned(self) -> NDArray[np.int64]:
        forced = self._matcher.compute_ff_bytes()
        if forced and not self._grammar.vocabulary.writes(forced):
            self._grammar.vocabulary.check(forced, self._grammar.field)
        mask = self._matcher.compute_bitmask()
        self._check()
        return self._grammar.find_banned(mask)

    def take(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()

    @property
    def accepts(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(
                f"{self._grammar.field}: {_first_line(self._matcher.get_error())}",
                field=self._grammar.field,
            )


def _lark(source: GrammarSource, *, has_space: bool) -> str:
    """The grammar in llguidance's form of Lark.

    Raises:
        ValueError: the schema is no JSON.
    """
    space = '" "? ' if has_space else ""
    if source.choices:
        options = " | ".join(json.dumps(text, ensure_ascii=False) for text in source.choices)
        return f"start: {space}({options})"
    if source.regex is not None:
        # A slash ends Lark's expressions, and so does a line break.
        expression = source.regex.replace("\n", "\\n").replace("\r", "\\r")
        return f"start: {space}text\ntext: /{_escaped_slashes(expression)}/"
    try:
        schema = json.loads(source.json_schema or "")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _JSON_OPTIONS}
    return f"start: {space}object\nobject: %json {json.dumps(schema)}"


def _escaped_slashes(expression: str) -> str:
    """A regular expression whose slashes are escaped, those that are already left alone."""
    parts: list[str] = []
    is_escaped = False
    for character in expression:
        parts.append("\\/" if character == "/" and not is_escaped else character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(parts)


def _refusal(source: GrammarSource, message: str) -> InvalidRequest:
    return InvalidRequest(f"{source.field} is refused: {_first_line(message)}", field=source.field)


def _first_line(message: str) -> str:
    if message.startswith("NoExtension"):
        return "no output can match it"
    lines: Sequence[str] = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:_MESSAGE] if lines else "unknown error"
