"""Requests of many items: an error replaces its item's result and leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from inference.errors import KINDS, InternalError, Overloaded, ServingError, Unavailable
from inference.sequences import Finished
from inference.tasks.shared.model_calls import Call, Outcome
from triptych.messages import Item, ItemError, Usage

In = TypeVar("In")
Out = TypeVar("Out")
AnyItem = TypeVar("AnyItem", bound=Item)
AnyCall = TypeVar("AnyCall", bound=Call)


def attempt_each(
    items: Sequence[In], attempt: Callable[[int, In], Out], calls: list[AnyCall] | None = None
) -> tuple[Out | ServingError, ...]:
    """Each item's result or its error, in order.

    Args:
        calls: What `attempt` appends to; an item that fails leaves nothing there.

    Raises:
        ServingError: every item failed; the first one's error stands for all.
    """
    results: list[Out | ServingError] = []
    for index, item in enumerate(items):
        before = len(calls or ())
        try:
            results.append(attempt(index, item))
        except ServingError as error:
            results.append(error)
            if calls is not None:
                del calls[before:]
    if results and all(isinstance(result, ServingError) for result in results):
        assert isinstance(results[0], ServingError)
        raise results[0]
    return tuple(results)


def answer_each(
    inputs: Sequence[In | ServingError], answer: Callable[[int, In], AnyItem], item: type[AnyItem]
) -> list[AnyItem]:
    """The response's items in the request's order, an error in place of its item's result.

    Raises:
        ServingError: every item failed; the first one's error stands for all.
    """
    results = attempt_each(inputs, lambda index, each: answer(index, unwrap(each)))
    return [
        item(index=index, error=item_error(result)) if isinstance(result, ServingError) else result
        for index, result in enumerate(results)
    ]


def map_valid(
    items: Iterable[In | ServingError], convert: Callable[[In], Out]
) -> tuple[Out | ServingError, ...]:
    """Converts the items, and leaves the errors in their places."""
    return tuple(item if isinstance(item, ServingError) else convert(item) for item in items)


def unwrap(outcome: Out | ServingError) -> Out:
    """The result of an outcome.

    Raises:
        ServingError: it is an error.
    """
    if isinstance(outcome, ServingError):
        raise outcome
    return outcome


def item_error(error: ServingError) -> ItemError:
    """An error as an item of the response carries it."""
    return ItemError(type=error.wire, message=error.message, field=error.field)


def error_of(item: ItemError) -> ServingError:
    """The error that an item of the response carries, of the kind that it had.

    An item has no time after which a retry may succeed; it is `RETRY_AFTER_S` for errors that are
    raised with one.
    """
    kind = KINDS.get(item.type, InternalError)
    is_retried = issubclass(kind, Overloaded | Unavailable)
    return kind(item.message, field=item.field, retry_after_s=RETRY_AFTER_S if is_retried else None)


RETRY_AFTER_S = 1.0


def finished_of(outcome: Outcome) -> Finished:
    """The result of a generator's call.

    Raises:
        ServingError: the call failed.
    """
    finished = unwrap(outcome)
    assert isinstance(finished, Finished)
    return finished


def usage_of(outcomes: Sequence[Outcome]) -> Usage:
    """Tokens over all generator calls that succeeded."""
    finished = [outcome for outcome in outcomes if isinstance(outcome, Finished)]
    return Usage(
        prompt_tokens=sum(result.prompt_tokens for result in finished),
        completion_tokens=sum(result.generated_tokens for result in finished),
    )
