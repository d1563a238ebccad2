"""Jinja's sandbox with limits on the work and the memory of one rendering.

Jinja's own sandbox keeps a template away from Python's internals, but lets it repeat a text a
billion times or nest loops without end.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
"""Of one rendering: loop iterations, macro calls, operators, and the characters that they make."""
MAX_RENDER_S = 2.0
"""Of one rendering; a usual conversation takes some milliseconds."""
MAX_CHARACTERS = 4_000_000
"""Of one text or list that an operator or a method makes."""
MAX_BITS = 10_000
"""Of one number."""
_CHARACTERS_PER_STEP = 100
_STEPS_PER_CLOCK = 256
_STEP = "counted step"
"""Name of a filter; a template cannot write it."""
_SIZED_METHODS = ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill")
_SIZED_FILTERS = (
    "batch", "center", "format", "indent", "join", "replace", "slice", "tojson", "truncate",
    "wordwrap",
)  # fmt: skip
_WIDE_FORMAT = re.compile(r"(%[^a-zA-Z%]*|\{[^{}]*:[^{}]*)\d{5}")
"""A width of five digits in a format, of `%` or of `str.format`."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """An environment whose templates render within limits; in several threads at once."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._used = threading.local()
        del self.globals["lipsum"]
        self.filters[_STEP] = _step

    def limit_filters(self) -> None:
        """Bounds what the present filters make."""
        self.filters |= {name: _limited(name, self.filters[name]) for name in _SIZED_FILTERS}

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """One rendering in this thread; limits are counted from here."""
        self._used.steps = 0
        self._used.until_s = time.monotonic() + MAX_RENDER_S
        yield

    def step(self, count: int = 1) -> None:
        """Raises SecurityError where the rendering has used up its limits."""
        before = self._used.steps
        after = self._used.steps = before + count
        if after > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        is_due = before // _STEPS_PER_CLOCK != after // _STEPS_PER_CLOCK
        if is_due and time.monotonic() > self._used.until_s:
            raise SecurityError(f"it takes more than {MAX_RENDER_S:g} s")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator whose result is within the limits."""
        if operator == "%" and isinstance(left, str):
            _check_arguments("format", left, right if isinstance(right, tuple) else (right,))
        else:
            _check_operands(operator, left, right)
        made = super().call_binop(context, operator, left, right)
        self.step(1 + (len(made) // _CHARACTERS_PER_STEP if isinstance(made, str | list) else 0))
        return made

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call whose result is within the limits."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            _check_arguments(__obj.__name__, text, (*args, *kwargs.values()))
            __self.step(1 + len(text) // _CHARACTERS_PER_STEP)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe `str.format`, with a result within the limits."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @wraps(safe)
        def limited(*args: Any, **kwargs: Any) -> str:
            _check_arguments("format", value.__self__, (*args, *kwargs.values()))
            return safe(*args, **kwargs)

        return limited

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template, with a step in each loop and macro, and `a + b` of texts for `a ~ b`."""
        template = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
        ]
        for node in repeated:
            step = nodes.Filter(nodes.Const(1), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
        _Summed().visit(template)
        template.set_environment(self)
        return template


@pass_context
def _step(context: Context, count: int) -> None:
    """Counts an iteration or a call; a filter, because Jinja calls filters directly."""
    environment = context.environment
    assert isinstance(environment, LimitedEnvironment)
    environment.step(count)


class _Summed(NodeTransformer):
    """Replaces `a ~ b`, which no method of an environment sees, by a sum of texts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        texts = [nodes.Filter(part, "string", [], [], None, None) for part in node.nodes]
        whole: nodes.Expr = texts[0]
        for text in texts[1:]:
            whole = nodes.Add(whole, text, lineno=node.lineno)
        return whole


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses arguments whose result would be too large."""
    skipped = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[skipped:]
        _check_arguments(name, value, (*others, *kwargs.values()))
        return function(*args, **kwargs)

    return limited


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Raises SecurityError where the result would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        if operator in ("*", "**"):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            _check_size(bits, MAX_BITS, "bits in a number")
        return
    sized, times = (right, left) if isinstance(left, int) else (left, right)
    if not isinstance(sized, str | list | tuple):
        return
    if operator == "*" and isinstance(times, int):
        _check_size(len(sized) * times)
    elif operator == "+" and isinstance(times, str | list | tuple):
        _check_size(len(sized) + len(times))


def _check_arguments(name: str, value: Any, args: Sequence[Any]) -> None:
    """Raises SecurityError where a method of a text, or a filter, would make too much.

    Args:
        name: The method's or the filter's.
        value: The text, or what the filter is applied to.
    """
    text = value if isinstance(value, str) else ""
    if name == "join":
        parts = next((part for part in (value, *args) if isinstance(part, list | tuple)), ())
        gap = next((part for part in (value, *args) if isinstance(part, str)), "")
        _check_size(sum(len(part) for part in parts if isinstance(part, str)))
        _check_size(len(gap) * len(parts))
    elif name == "replace" and len(args) > 1 and isinstance(args[0], str | Undefined):
        _check_size(len(text) + text.count(str(args[0])) * len(str(args[1])))
    elif name in _SIZED_METHODS or name in _SIZED_FILTERS:
        places = text.count("\n") + text.count("\t") + text.count("{") + text.count("%") + 1
        widest = max((abs(arg) for arg in args if isinstance(arg, int)), default=0)
        _check_size(places * widest)
        if name in ("format", "format_map") and _WIDE_FORMAT.search(text):
            raise SecurityError("a format has a width of more than four digits")


def _check_size(size: int, limit: int = MAX_CHARACTERS, what: str = "characters") -> None:
    if size > limit:
        raise SecurityError(f"it makes more than {limit} {what}")
