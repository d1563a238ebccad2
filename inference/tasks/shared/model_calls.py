"""Calls of models, their outcomes, and the items of a response that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from inference.bundle.manifest import Part, Role, Tensor
from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.errors import (
    KINDS,
    BundleError,
    InternalError,
    Overloaded,
    ServingError,
    Unavailable,
)
from inference.generation import Finished, FinishReason, Hypothesis, Overrides
from inference.tasks.shared.incremental_text import IncrementalText
from triptych.messages import Item, ItemError, Usage

Array: TypeAlias = npt.NDArray[Any]

MAX_ROWS = 64
"""Of one call: Triton's `max_batch_size` of every stateless graph."""

_PIXELS_PER_TOKEN = 256  # a patch of 16 x 16
_PROMPT_IMAGES_RANK = 4  # (I, height, width, 3)
_CONDITIONS_RANK = 3  # (B, K, E)
_TOKENS_PER_CONDITION = 64
"""Of a mask: CLIPSeg's decoder takes a seventieth of its tower's operations, and a mask 0.5 MB."""
_PIXELS = (np.uint8, np.float32)  # what `ImageSpec.dtype` names; ids are integers


@dataclass(frozen=True, eq=False)
class GenerateCall:
    """One sequence for a generator; tensors as `inference.engine.codec` names them."""

    model: str
    version: int
    inputs: Mapping[str, Array]
    options: Overrides
    read: Callable[[], IncrementalText] | None = None
    """Makes the reader of a sequence that a stop string may end early; None: read at the end."""

    @property
    def tokens(self) -> int:
        """Cost at admission: ids as they are, an image by its patches."""
        arrays = self.inputs.values()
        return sum(_patches(each) if each.dtype in _PIXELS else each.size for each in arrays)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the request, as the engine counts them (`EngineRequest.prompt_tokens`)."""
        counted = [PROMPT_IDS, SOURCE_IDS]
        if PIXELS in self.inputs and self.inputs[PIXELS].ndim == _PROMPT_IMAGES_RANK:
            counted.remove(SOURCE_IDS)
        return sum(self.inputs[name].size for name in counted if name in self.inputs)


@dataclass(frozen=True, eq=False)
class InferCall:
    """One batch for a stateless graph; every input has the batch as its first dimension."""

    model: str
    version: int
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Role]
    """Output name → its role; the graph's other outputs are not computed."""
    instances: int = 1
    """Of the model."""

    @classmethod
    def of(cls, part: Part, inputs: Mapping[Role, Array], returns: tuple[Role, ...]) -> InferCall:
        """A call of a part by the roles of its inputs and outputs.

        Raises:
            BundleError: the part lacks one of them.
        """
        return cls(
            part.model,
            part.version,
            {_name(part, part.graph.input(role), role): array for role, array in inputs.items()},
            {_name(part, part.graph.output(role), role): role for role in returns},
            part.instances,
        )

    @property
    def rows(self) -> int:
        """The batch dimension."""
        return len(next(iter(self.inputs.values())))

    @cached_property
    def tokens(self) -> int:
        """Cost at admission, padding included: of the largest input, which is text or images."""
        is_masked = Role.MASKS in self.outputs.values()
        return max(cost(array, is_masked) for array in self.inputs.values())


Call: TypeAlias = GenerateCall | InferCall


def ended_early(call: GenerateCall, text: IncrementalText) -> Finished:
    """The response of a call that a stop string ended; its score is not divided by length."""
    tokens = text.tokens
    score = sum(tokens.log_probs)
    stop = FinishReason.STOP
    found = Hypothesis(tokens.token_ids, score, stop, tokens.log_probs, tokens.top)
    return Finished((found,), call.prompt_tokens)


Outputs: TypeAlias = Mapping[Role, Array]
"""Response of a stateless call, by role; each array has the batch as its first dimension."""

Result: TypeAlias = Finished | Outputs
Outcome: TypeAlias = Result | ServingError
"""Result or failure of one call; the other calls are not affected."""


def size_of(outcome: Outcome) -> int:
    """Tokens and numbers to convert, an estimate of the work in `Plan.finish`."""
    if isinstance(outcome, ServingError):
        return 0
    if isinstance(outcome, Finished):
        aligned = [one.alignment for one in outcome.hypotheses if one.alignment is not None]
        return outcome.generated_tokens + sum(array.size for array in aligned)
    return sum(array.size for array in outcome.values())


def cost(array: Array, is_masked: bool) -> int:
    """Tokens of a stateless graph's input: ids as they are, an image by its patches.

    Vectors count one each; those that become masks have a fixed number.
    """
    if array.dtype == np.float32 and array.ndim == _CONDITIONS_RANK:
        return array.shape[0] * array.shape[1] * (_TOKENS_PER_CONDITION if is_masked else 1)
    return _patches(array) if array.dtype in _PIXELS else int(array.size)


def _patches(pixels: Array) -> int:
    """Of one image, or of several: (height, width, 3), (I, height, width, 3) or (B, F, …)."""
    height, width = pixels.shape[-3:-1]
    images = math.prod(pixels.shape[:-3])
    return images * max(1, height * width // _PIXELS_PER_TOKEN)


def _name(part: Part, tensor: Tensor | None, role: Role) -> str:
    if tensor is None:
        raise BundleError(f"{part.model} has no {role}: export it again")
    return tensor.name


class Outcomes(Protocol):
    """Outcomes by the numbers of their calls: of all calls of a plan, or of those that ended."""

    def __getitem__(self, call: int, /) -> Outcome:
        """The outcome of one call."""


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
