"""Chat templates: a conversation as the one text that a model continues.

A template is a Jinja program that comes with the checkpoint. It runs in a sandbox with limits
(`template_sandbox`), with the globals and filters that `transformers` gives it
(`utils/chat_template_utils.py`), on plain strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.utils import Namespace

from inference.errors import InvalidRequest
from inference.processing.templates.template_sandbox import LimitedEnvironment

MAX_TEMPLATE_CHARACTERS = 65_536
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,  # of `inf`, as Python writes 1e999
    RuntimeError,  # also of recursion without end
    TypeError,
    ValueError,
)
"""What a template's code raises for messages that it does not expect."""
_UNCOMPILED = (ArithmeticError, MemoryError, RecursionError, SyntaxError, ValueError)
"""What Python raises for a template that Jinja can read."""
_REASON_CHARACTERS = 200
_MAX_TIME_FORM = 200


class UnusableTemplate(ValueError):
    """A template that does not compile; one line."""


class ChatTemplate:
    """A compiled template; `render` may run in several threads at once.

    Args:
        source: Jinja source.
        special_tokens: Names that it may use, e.g. `bos_token` → `<s>`.

    Raises:
        UnusableTemplate: Jinja cannot compile it.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise UnusableTemplate(f"it has more than {MAX_TEMPLATE_CHARACTERS} characters")
        self._special_tokens = dict(special_tokens)
        try:
            self._environment = _environment()
            self._template = self._environment.from_string(source)
        # Python refuses to read a number of thousands of digits, and code that nests too deep.
        except (jinja2.TemplateError, *_UNCOMPILED) as error:
            raise UnusableTemplate(_one_line(error)) from None

    def render(self, messages: Sequence[Mapping[str, Any]], longest: int) -> str:
        """The conversation, up to where the model's answer begins.

        Args:
            messages: Each with `role` and `content`, a text or a list of parts.
            longest: Characters after which rendering ends.

        Raises:
            InvalidRequest: the template refuses the messages, or its text is too long.
        """
        conversation = [dict(message) for message in messages]
        pieces, length = [], 0
        found = self._template.generate(
            **self._special_tokens,
            messages=conversation,
            tools=None,
            documents=None,
            add_generation_prompt=True,
        )
        try:
            with self._environment.rendering():
                for piece in found:
                    pieces.append(piece)
                    length += len(piece)
                    if length > longest:
                        break
            text = "".join(pieces)
            text.encode()  # a template may write half a character, which is no text
        except _FAILURES as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {_one_line(error)}",
                field="messages",
            ) from None
        if length > longest:
            raise InvalidRequest(
                f"messages make more than {longest} characters in the model's chat template: "
                "shorten them",
                field="messages",
            )
        return text


class _Generation(Extension):
    """`{% generation %}`, with which templates mark answers for training: its body as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        """The tag's body, called once."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes of the type, which lead out of the sandbox."""

    def __call__(self, *args: Any, **fields: Any) -> dict[Any, Any]:
        return dict(*args, **fields)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's `namespace` without underscored attributes."""

    # A template may name an attribute `self`, so that no parameter can have this name.
    def __init__(*args: Any, **fields: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **fields)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        """Without the attributes, which may be namespaces of namespaces."""
        return "<namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _environment() -> LimitedEnvironment:
    made = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    made.limit_filters()
    return made


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > _MAX_TIME_FORM:
        raise SecurityError(f"a form of the time has more than {_MAX_TIME_FORM} characters")
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_REASON_CHARACTERS]
