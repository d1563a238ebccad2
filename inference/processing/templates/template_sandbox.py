"""Jinja's sandbox with limits on the work and the memory of one rendering.

Jinja's own sandbox keeps a template away from Python's internals, but lets it repeat a text a
billion times or nest loops without end.

The size of a list is that of its text: a list of two references to one text counts the text twice.
A few nested lists hold little memory, but their text, their JSON and a comparison of two of them
grow with each level.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Sized,
    ValuesView,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

from inference.processing.cancellation import check_abandoned

MAX_STEPS = 1_000_000
"""Loop iterations, macro calls, operators, and the values that they make."""
MAX_RENDER_S = 2.0
"""A usual conversation takes some milliseconds."""
MAX_CHARACTERS = 4_000_000
"""Of one value's text."""
MAX_DEPTH = 64
"""Of lists in lists."""
NODE = 20
"""Characters that an element of a list counts, beside its own."""
CHARACTERS_PER_STEP = 100
_ELEMENTS_PER_STEP = 10
_STEPS_PER_CONTAINER = 4
_STEPS_PER_CLOCK = 16
_VIEWS = (ItemsView, KeysView, ValuesView)
_CONTAINERS = (list, tuple, dict, *_VIEWS)


class Size(NamedTuple):
    """The size of a value."""

    characters: int
    elements: int
    """Of all its lists; 1 for a text."""
    depth: int
    """Of lists in lists; 0 for a text."""


@dataclass
class Budget:
    """What is left for one rendering."""

    steps: int = 0
    until_s: float = field(default_factory=lambda: time.monotonic() + MAX_RENDER_S)
    _sizes: dict[int, tuple[Any, Size]] = field(default_factory=dict)
    """Of lists by their ids, with the lists, so that no other gets the id. None ever changes: the
    sandbox refuses what would."""

    def step(self, count: int = 1) -> None:
        """Raises where the rendering has used up its steps or its time, or nothing waits for it."""
        before = self.steps
        after = self.steps = before + count
        if after > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if before // _STEPS_PER_CLOCK != after // _STEPS_PER_CLOCK:
            check_abandoned()
            if time.monotonic() > self.until_s:
                raise SecurityError(f"it takes more than {MAX_RENDER_S:g} s")

    def made(self, value: Any) -> Any:
        """A new value, after its steps and its size are counted.

        Raises:
            SecurityError: it is too large, or the rendering has used up its steps.
        """
        if isinstance(value, str):
            self.step(1 + len(value) // CHARACTERS_PER_STEP)
            check_size(len(value))
        elif isinstance(value, _CONTAINERS):
            self.step(_STEPS_PER_CONTAINER + len(value) // _ELEMENTS_PER_STEP)
            self.size(value)
        return value

    def size(self, value: Any) -> Size:
        """The size of a value.

        Raises:
            SecurityError: it is too large.
        """
        if isinstance(value, str):
            return Size(len(value), 1, 0)
        if not isinstance(value, _CONTAINERS):
            return Size(1, 1, 0)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        characters = elements = depth = 0
        for part in parts:
            own = self.size(part)
            characters += NODE + own.characters
            elements += own.elements
            depth = max(depth, own.depth)
            check_size(characters)
        if depth >= MAX_DEPTH:
            raise SecurityError(f"it nests lists more than {MAX_DEPTH} deep")
        found = Size(characters, 1 + elements, depth + 1)
        self._sizes[id(value)] = value, found
        return found


def check_size(size: int, limit: int = MAX_CHARACTERS, what: str = "characters") -> None:
    """Raises SecurityError where a size is over its limit."""
    if size > limit:
        raise SecurityError(f"it makes more than {limit} {what}")


MAX_BITS = 10_000
"""Of one number."""
MAX_DIGITS = 300
"""That a number is rounded to."""
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%(]*\d{5}|\{[^{}]*:[^{}]*\d{5}")
"""A width of five digits in a format, of `%` or of `str.format`."""
_NAMED_FORMAT = re.compile(r"%\(")
_WIDE_BEHIND_NAME = re.compile(r"[^a-zA-Z%]*\d{5}")
_WIDTH_ARGUMENT = re.compile(r"\{[^{}]*:[^{}]*\{")
"""A width that is an argument of `str.format`."""


def check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raises SecurityError where the result would be too large."""
    if isinstance(left, int) and isinstance(right, int):
        if operator in ("*", "**"):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            check_size(bits, MAX_BITS, "bits in a number")
        return
    if operator == "%" and isinstance(left, str):
        check_call(budget, "format", left, right if isinstance(right, tuple) else (right,))
    elif operator == "*":
        sized, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(times, int):
            check_size(_characters(budget, sized) * times)
    elif operator == "+":
        check_size(_characters(budget, left) + _characters(budget, right))


def check_call(budget: Budget, name: str, value: Any, args: Sequence[Any]) -> None:
    """Raises SecurityError where a method of a text, or a filter, would make too much.

    Args:
        name: The method's or the filter's.
        value: The text, or what the filter is applied to.
        args: All arguments, named ones too.
    """
    largest = max((_count_argument(budget, arg) for arg in args), default=0)
    if name == "round":
        check_size(largest, MAX_DIGITS, "digits in a number")
    elif name == "sum" and not all(isinstance(arg, int | float | str | None) for arg in args):
        raise SecurityError("it sums what are no numbers")
    elif name in _PLACES:
        check_size(_characters(budget, value) + _PLACES[name](budget, value, args) * largest)
    if name in ("format", "format_map") and isinstance(value, str):
        if _WIDE_FORMAT.search(value) or _has_wide_names(value):
            raise SecurityError("a format has a width of more than four digits")
        if _WIDTH_ARGUMENT.search(value):
            raise SecurityError("a format has a width that is an argument")


def _has_wide_names(text: str) -> bool:
    """Whether a `%(name)` in a format is followed by a width of five digits.

    Raises:
        SecurityError: a name has parentheses, so that its end is not the first one.
    """
    for found in _NAMED_FORMAT.finditer(text):
        end = text.find(")", found.end())
        if end < 0:
            return False  # the operator refuses it
        if "(" in text[found.end() : end]:
            raise SecurityError("a name in a format has parentheses")
        if _WIDE_BEHIND_NAME.match(text, end + 1):
            return True
    return False


def _once(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return 1


def _lines(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return 1 + value.count("\n") if isinstance(value, str) else 1


def _tabs(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return value.count("\t") if isinstance(value, str) else 0


def _fields(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return value.count("{") + value.count("%") if isinstance(value, str) else 0


def _count_found(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    """Places of the text to replace; a filter takes what is no text as one."""
    old = next(iter(args), "")
    return str(value).count(str(old)) if isinstance(old, str | Undefined) else 0


def _parts(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return len(value) if isinstance(value, Sized) else 1


def _json_lines(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    """Lines of indented JSON; each is indented as often as it is deep."""
    _, elements, depth = budget.size(value)
    return elements * (depth + 1)


def _rows(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    """What fills a row of a table, beside the row itself."""
    return NODE + max((_characters(budget, arg) for arg in args), default=0)


_PLACES: Mapping[str, Callable[[Budget, Any, Sequence[Any]], int]] = {
    "batch": _rows,
    "center": _once,
    "expandtabs": _tabs,
    "format": _fields,
    "format_map": _fields,
    "indent": _lines,
    "join": _parts,
    "ljust": _once,
    "replace": _count_found,
    "rjust": _once,
    "slice": _rows,
    "tojson": _json_lines,
    "truncate": _once,
    "zfill": _once,
}
"""Methods and filters that write an argument, or as many characters as it says: how often."""


def _count_argument(budget: Budget, value: Any) -> int:
    """Characters of an argument, or those that a number calls for."""
    return abs(value) if isinstance(value, int) else _characters(budget, value)


def _characters(budget: Budget, value: Any) -> int:
    return budget.size(value).characters


MAX_CODE_CHARACTERS = 262_144
"""Of the Python code of a template; Python holds its lock while it compiles, up to 1 µs each."""
_STEP = "counted step"
"""Name of a filter; a template cannot write it."""
_MADE = "counted value"
"""Likewise."""
_NO_FILTERS = ("striptags", "urlize", "wordwrap", "xmlattr")
"""For HTML and for terminals, without a limit."""
_TEXT_ATTRIBUTES = frozenset("encode maketrans striptags translate unescape".split())
"""Of a text, without use for a template and without a limit."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """An environment whose templates render within limits; in several threads at once."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._current = threading.local()
        del self.globals["lipsum"]
        for name in _NO_FILTERS:
            del self.filters[name]
        self.finalize = _count_made

    def limit_filters(self) -> None:
        """Bounds what the present filters make."""
        self.filters = {name: _limit(name, each) for name, each in self.filters.items()}
        self.filters |= {_STEP: _step, _MADE: _count_made}

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """One rendering in this thread; limits are counted from here."""
        self._current.budget = Budget()
        try:
            yield
        finally:
            del self._current.budget

    @property
    def budget(self) -> Budget:
        """The budget of this thread's rendering."""
        budget: Budget = self._current.budget
        return budget

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read an attribute; it may call none of a number's."""
        if isinstance(obj, str) and attr in _TEXT_ATTRIBUTES:
            return False
        return not isinstance(obj, int | float) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator whose result is within the limits."""
        check_operands(self.budget, operator, left, right)
        self.budget.step()
        return self.budget.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call whose arguments and result are within the limits."""
        budget, text = __self.budget, getattr(__obj, "__self__", None)
        if isinstance(text, str):
            args = tuple(map(_as_list, args))
            if __obj.__name__ == "join":  # the filter's order
                check_call(budget, "join", args[0] if args else (), (text,))
            else:
                check_call(budget, __obj.__name__, text, (*args, *kwargs.values()))
            budget.step(1 + len(text) // CHARACTERS_PER_STEP)
        else:
            check_size(sum(budget.size(arg).characters for arg in (*args, *kwargs.values())))
        return budget.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's safe `str.format`, with a result within the limits."""
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        @wraps(safe)
        def limited(*args: Any, **kwargs: Any) -> str:
            check_call(self.budget, "format", value.__self__, (*args, *kwargs.values()))
            return safe(*args, **kwargs)

        return limited

    def _compile(self, source: str, filename: str) -> CodeType:
        """The code object of a template's Python code.

        Raises:
            SecurityError: other threads would wait too long.
        """
        if len(source) > MAX_CODE_CHARACTERS:
            raise SecurityError(
                f"its Python code has {len(source)} characters, {MAX_CODE_CHARACTERS} are allowed"
            )
        return super()._compile(source, filename)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template, with a step in each loop and macro, and filters where values are made."""
        template = super()._parse(source, name, filename)
        repeated: list[nodes.For | nodes.Macro] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
        ]
        for node in repeated:
            step = nodes.Filter(nodes.Const(1), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
        _Counted().visit(template)
        template.set_environment(self)
        return template


@pass_context
def _step(context: Context, count: int) -> None:
    """Counts an iteration or a call; a filter, because Jinja calls filters directly."""
    _budget(context).step(count)


@pass_context
def _count_made(context: Context, value: Any) -> Any:
    """Counts a value that no method of an environment sees, and those that are written."""
    return _budget(context).made(value)


def _budget(context: Context) -> Budget:
    environment = context.environment
    assert isinstance(environment, LimitedEnvironment)
    return environment.budget


class _Counted(NodeTransformer):
    """Replaces expressions that make values past the environment's methods."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """`a ~ b` as a sum of texts."""
        self.generic_visit(node)
        texts = [nodes.Filter(part, "string", [], [], None, None) for part in node.nodes]
        whole: nodes.Expr = texts[0]
        for text in texts[1:]:
            whole = nodes.Add(whole, text, lineno=node.lineno)
        return whole

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        """`[a, b]`."""
        return self._counted(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        """`(a, b)`, unless it is assigned to."""
        return self._counted(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        """`{'a': b}`."""
        return self._counted(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """`a[1:]`."""
        if isinstance(node.arg, nodes.Slice):
            return self._counted(node)
        self.generic_visit(node)
        return node

    def _counted(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return nodes.Filter(node, _MADE, [], [], None, None, lineno=node.lineno)


def _limit(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses arguments whose result would be too large.

    It takes the context, so that Jinja does not compute it for constants while it compiles.
    """
    passed = _PassArg.from_obj(function)

    @pass_context
    @wraps(function)
    def limited(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        if name == "join":
            value = _as_list(value)
        check_call(budget, name, value, (*args, *kwargs.values()))
        first = () if passed is None else (_first_argument(context, passed),)
        return budget.made(function(*first, value, *args, **kwargs))

    return limited


def _first_argument(context: Context, what: _PassArg) -> Any:
    """What Jinja gives a filter before its value."""
    if what is _PassArg.context:
        return context
    return context.eval_ctx if what is _PassArg.eval_context else context.environment


def _as_list(value: Any) -> Any:
    """A value whose elements can be counted: a list for an iterator, which `join` would read."""
    return list(islice(value, MAX_CHARACTERS // NODE + 1)) if isinstance(value, Iterator) else value
