"""Decoding with a served runner while float64 computes every step beside it.

Where two searches return other tokens, one of them may have chosen between candidates that rounding
cannot tell apart. Here the search follows the served runner, and every log-probability that it sees
is compared with that of float64: if none is too far away, its choices are explained.

Decision D90.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.architecture import Graphs
from export.parity.torch_runner import TorchRunner
from inference.bundle.manifest import Manifest
from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.prompt import Prompt
from inference.engine.runners.protocol import Group, Runner
from inference.engine.state.memory_model import BufferShape

MULTIPLE = 4
"""Of PyTorch's own distance from float64 that a log-probability may have."""
CEILING = 0.1
"""Most that is allowed, in nats."""


class LockstepRunner(TorchRunner):
    """A `Runner` that serves another one's candidates and measures them.

    Attributes:
        served: Largest difference of a candidate's log-probability from float64's, in nats.
        torch: The same of PyTorch in float32.
    """

    def __init__(self, runner: Runner, graphs: Graphs, manifest: Manifest) -> None:
        super().__init__(graphs, manifest)
        self._runner = runner
        self._exact = TorchRunner(graphs, manifest, is_exact=True)
        self.served = 0.0
        self.torch = 0.0

    def is_allowed(self, tolerance: float) -> bool:
        """Whether the served log-probabilities are as near to float64 as PyTorch's.

        Args:
            tolerance: Allowed however near PyTorch is.
        """
        return self.served <= max(tolerance, min(MULTIPLE * self.torch, CEILING))  # NaN is not

    def group(self, width: int) -> Group:
        """A group of each runner."""
        rounded = super().group(width)
        return _LockstepGroup(self, self._runner.group(width), self._exact.group(width), rounded)

    def add(self, served: Candidates, exact: Candidates, rounded: Candidates) -> None:
        """Adds one call's candidates; float64 and PyTorch have all tokens."""
        count = served.token_ids.shape[1]
        wanted, other = _by_token(exact), _by_token(rounded)
        near = np.take_along_axis(wanted, served.token_ids, 1)
        self.served = max(
            self.served,
            _largest(served.log_probs, near),
            _largest(served.log_probs, exact.log_probs[:, :count]),  # none better was left out
        )
        listed = np.take_along_axis(other, served.token_ids, 1)
        self.torch = max(self.torch, _largest(listed, near))


class _LockstepGroup(Group):
    """Groups that take the same calls; the first one's candidates are returned."""

    def __init__(self, runner: LockstepRunner, *groups: Group) -> None:
        self._runner, self._groups = runner, groups
        self.width = groups[0].width

    @property
    def blocks_of_step(self) -> int:
        return self._groups[0].blocks_of_step

    @property
    def state_bytes(self) -> int:
        return self._groups[0].state_bytes

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        return self._compared(lambda group, requests: group.admit(prompts, requests), row_requests)

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        return self._compared(lambda group, requests: group.step(token_ids, requests), row_requests)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for group in self._groups:
            group.copy(sources, targets)

    def retire(self, slot: int) -> None:
        for group in self._groups:
            group.retire(slot)

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        for group in self._groups:
            group.reserve(reservation, expected_sequences)

    def shrink(self) -> None:
        for group in self._groups:
            group.shrink()

    def release(self) -> None:
        for group in self._groups:
            group.release()

    def _compared(
        self,
        call: Callable[[Group, Sequence[CandidateRequest]], Candidates],
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        size = self._runner.vocabulary_size
        whole = {id(each): replace(each, count=size) for each in row_requests}
        full = [whole[id(each)] for each in row_requests]
        served, *others = self._groups
        candidates = call(served, row_requests)
        self._runner.add(candidates, *(call(group, full) for group in others))
        return candidates


def _by_token(candidates: Candidates) -> NDArray[np.float64]:
    """Log-probabilities of all tokens in the order of their ids, (rows, V)."""
    found = np.empty(candidates.token_ids.shape)
    np.put_along_axis(found, candidates.token_ids, candidates.log_probs.astype(np.float64), 1)
    return found


def _largest(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference; banned tokens of both are equal, those of one are not."""
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0.0, np.abs(one.astype(np.float64) - other))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))
