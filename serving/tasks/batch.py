"""One request, many items: a bad item is reported in its place and leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from serving.errors import TriptychError
from triptych.messages import ItemError
from triptych.tasks.caption import Caption
from triptych.tasks.generate import Generation
from triptych.tasks.translate import Translation
from triptych.tasks.zero_shot import Classification

In = TypeVar("In")
Out = TypeVar("Out")
Item = TypeVar("Item", Translation, Caption, Classification, Generation)


def attempt_each(
    items: Sequence[In], attempt: Callable[[int, In], Out]
) -> tuple[Out | TriptychError, ...]:
    """Each item's result or its error, in order.

    Raises:
        TriptychError: every item failed; the first one's error stands for all.
    """
    results: list[Out | TriptychError] = []
    for index, item in enumerate(items):
        try:
            results.append(attempt(index, item))
        except TriptychError as error:
            results.append(error)
    if results and all(isinstance(result, TriptychError) for result in results):
        assert isinstance(results[0], TriptychError)
        raise results[0]
    return tuple(results)


def in_place(results: Sequence[Item | TriptychError], item: type[Item]) -> list[Item]:
    """Items in the order asked, an error standing in its item's place."""
    return [
        item(index=index, error=item_error(result)) if isinstance(result, TriptychError) else result
        for index, result in enumerate(results)
    ]


def unwrap(outcome: Out | TriptychError) -> Out:
    """The result of an outcome.

    Raises:
        TriptychError: it is an error.
    """
    if isinstance(outcome, TriptychError):
        raise outcome
    return outcome


def item_error(error: TriptychError) -> ItemError:
    """What stands in an item's place."""
    return ItemError(type=error.wire, message=error.message, field=error.field)
