"""Jinja's sandbox with limits on the work and the memory of one rendering.

Jinja's own sandbox keeps a template away from Python's internals, but lets it repeat a text a
billion times or nest loops without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from types import CodeType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

from inference.processing.templates.template_budget import (
    CHARACTERS_PER_STEP,
    MAX_CHARACTERS,
    NODE,
    Budget,
    check_size,
)
from inference.processing.templates.template_sizes import check_call, check_operands

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
        self.finalize = _made

    def limit_filters(self) -> None:
        """Bounds what the present filters make."""
        self.filters = {name: _limited(name, each) for name, each in self.filters.items()}
        self.filters |= {_STEP: _step, _MADE: _made}

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
        """Of this thread's rendering."""
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
            args = tuple(map(_listed, args))
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
def _made(context: Context, value: Any) -> Any:
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


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses arguments whose result would be too large.

    It takes the context, so that Jinja does not compute it for constants while it compiles.
    """
    passed = _PassArg.from_obj(function)

    @pass_context
    @wraps(function)
    def limited(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        if name == "join":
            value = _listed(value)
        check_call(budget, name, value, (*args, *kwargs.values()))
        first = () if passed is None else (_passed(context, passed),)
        return budget.made(function(*first, value, *args, **kwargs))

    return limited


def _passed(context: Context, what: _PassArg) -> Any:
    """What Jinja gives a filter before its value."""
    if what is _PassArg.context:
        return context
    return context.eval_ctx if what is _PassArg.eval_context else context.environment


def _listed(value: Any) -> Any:
    """A value whose elements can be counted: a list for an iterator, which `join` would read."""
    return list(islice(value, MAX_CHARACTERS // NODE + 1)) if isinstance(value, Iterator) else value
