"""Candidates of a call: the graph's choice where that is enough, else a ranking of the logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.edits import CellEdits, HostLogits, select_candidates
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder
from inference.engine.runners.openvino.decoder_call import DecoderCall


class ChosenLogits(HostLogits):
    """Logits of a call whose graph has ranked them already.

    Args:
        best: The graph's choice, used while it is enough and no score was edited.
    """

    def __init__(
        self, decoder: CompiledDecoder, values: NDArray[np.float32], best: Candidates
    ) -> None:
        super().__init__(values, decoder.rank)
        self._best, self._is_edited = best, False

    def edit(self, cells: CellEdits) -> NDArray[np.float32]:
        """See `Logits.edit`."""
        self._is_edited = True
        return super().edit(cells)

    def rank(
        self,
        count: int,
        temperatures: NDArray[np.float32] | None = None,
        *,
        with_logits: bool = False,
    ) -> Candidates:
        """See `Logits.rank`."""
        best = self._best
        is_enough = count <= best.token_ids.shape[1] and temperatures is None and not with_logits
        if is_enough and not self._is_edited:
            return Candidates(best.token_ids[:, :count], best.log_probs[:, :count])
        return super().rank(count, temperatures, with_logits=with_logits)


def candidates_of(
    decoder: CompiledDecoder, call: DecoderCall, row_requests: Sequence[CandidateRequest]
) -> Candidates:
    """Candidates of a call's scored tokens, each after its own edit.

    The graph and the ranking of the logits sum up in different orders. Which of the two a row gets
    depends on its own request alone, not on what others need.
    """
    logits, best = call.outputs()
    found = select_candidates(ChosenLogits(decoder, logits, best), row_requests)
    most = best.token_ids.shape[1]
    plain = {kind: _is_plain(kind, most) for kind in set(row_requests)}
    if not all(plain.values()):
        rows = [row for row, request in enumerate(row_requests) if plain[request]]
        count = min(most, found.token_ids.shape[1])
        found.token_ids[rows, :count] = best.token_ids[rows, :count]
        found.log_probs[rows, :count] = best.log_probs[rows, :count]
    return found


def _is_plain(request: CandidateRequest, most: int) -> bool:
    """Whether the graph's choice of so many tokens is enough for a row."""
    needs_logits = request.edit is not None or request.temperature is not None or request.given
    return request.count <= most and not needs_logits
