"""How much an operator, a method of a text or a filter would make, before it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

from inference.processing.templates.template_budget import NODE, Budget, check_size

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
    largest = max((_extent(budget, arg) for arg in args), default=0)
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


def _found(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    """Places of the text to replace; a filter takes what is no text as one."""
    old = next(iter(args), "")
    return str(value).count(str(old)) if isinstance(old, str | Undefined) else 0


def _parts(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    return len(value) if isinstance(value, Sized) else 1


def _json_lines(budget: Budget, value: Any, args: Sequence[Any]) -> int:
    """Each is indented as often as it is deep."""
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
    "replace": _found,
    "rjust": _once,
    "slice": _rows,
    "tojson": _json_lines,
    "truncate": _once,
    "zfill": _once,
}
"""Methods and filters that write an argument, or as many characters as it says: how often."""


def _extent(budget: Budget, value: Any) -> int:
    """Characters of an argument, or those that a number calls for."""
    return abs(value) if isinstance(value, int) else _characters(budget, value)


def _characters(budget: Budget, value: Any) -> int:
    return budget.size(value).characters
