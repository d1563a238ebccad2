"""What tasks ask of models and what comes back, as data: tasks do no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from serving.bundle import Part, Role, Tensor
from serving.errors import BundleError, TriptychError
from serving.generation import FinishReason, Overrides
from serving.tasks.tokens import LiveText, Top

Array: TypeAlias = npt.NDArray[Any]

_PIXELS_PER_TOKEN = 256  # a patch of 16 x 16


@dataclass(frozen=True, eq=False)
class GenerateCall:
    """One sequence for a generator; tensors as `serving.codec` names them."""

    model: str
    version: int
    inputs: Mapping[str, Array]
    options: Overrides
    read: Callable[[], LiveText] | None = None
    """Makes the reader of a sequence that may end early: at a stop string."""

    @property
    def tokens(self) -> int:
        """What it costs at admission."""
        return sum(cost(array) for array in self.inputs.values())

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the user brought, as the engine counts them: pictures have none."""
        return sum(array.size for array in self.inputs.values() if array.dtype != np.uint8)


@dataclass(frozen=True, eq=False)
class InferCall:
    """One batch for a stateless graph; every input has the batch as its first dimension."""

    model: str
    version: int
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Role]
    """Output name → its role; no other output of the graph is asked for."""

    @classmethod
    def of(cls, part: Part, inputs: Mapping[Role, Array], returns: tuple[Role, ...]) -> InferCall:
        """A call of a part by the roles of its inputs and outputs.

        Raises:
            BundleError: the part lacks one of them.
        """
        return cls(
            part.model,
            part.version,
            {_port(part, part.graph.input(role), role): array for role, array in inputs.items()},
            {_port(part, part.graph.output(role), role): role for role in returns},
        )

    @property
    def tokens(self) -> int:
        """What it costs at admission, padding included."""
        return sum(cost(array) for array in self.inputs.values())


Call: TypeAlias = GenerateCall | InferCall


@dataclass(frozen=True)
class Generated:
    """A generator's answer: hypotheses, best first."""

    sequences: tuple[tuple[int, ...], ...]
    """Generated token ids, the end token included, without padding."""
    scores: tuple[float, ...]
    finish_reasons: tuple[str, ...] = field(default=())
    prompt_tokens: int = 0
    completion_tokens: int = 0
    log_probs: tuple[tuple[float, ...], ...] = ()
    """Of each sequence's tokens, if asked."""
    top: tuple[tuple[Top, ...], ...] = ()
    """At each place of each sequence the best tokens, if asked."""
    alignments: tuple[Array, ...] = ()
    """(tokens, S) float32 for each sequence, if asked."""


def ended_early(call: GenerateCall, live: LiveText) -> Generated:
    """What a call generated until a stop string was found; its score is not divided by length."""
    tokens = live.tokens
    return Generated(
        sequences=(tokens.ids,),
        scores=(sum(tokens.log_probs),),
        finish_reasons=(FinishReason.STOP,),
        prompt_tokens=call.prompt_tokens,
        completion_tokens=len(tokens.ids),
        log_probs=(tokens.log_probs,),
        top=(tokens.top,),
    )


Outputs: TypeAlias = Mapping[Role, Array]
"""What a stateless call returned, by role; each array has the batch as its first dimension."""

Result: TypeAlias = Generated | Outputs
Outcome: TypeAlias = Result | TriptychError
"""What became of a call: one call's failure leaves the others alone."""


def size(outcome: Outcome) -> int:
    """About how much there is to do to make an answer of it: tokens, and numbers."""
    if isinstance(outcome, TriptychError):
        return 0
    if isinstance(outcome, Generated):
        return sum(map(len, outcome.sequences)) + sum(a.size for a in outcome.alignments)
    return sum(array.size for array in outcome.values())


def _port(part: Part, tensor: Tensor | None, role: Role) -> str:
    if tensor is None:
        raise BundleError(f"{part.model} has no {role}: export it again")
    return tensor.name


def cost(array: Array) -> int:
    """Tokens of an input, for admission: ids as they are, a picture by its patches."""
    if array.dtype == np.uint8:
        height, width = array.shape[-3:-1]
        pictures = array.shape[0] if array.ndim == 4 else 1
        return pictures * max(1, height * width // _PIXELS_PER_TOKEN)
    return int(array.size)
