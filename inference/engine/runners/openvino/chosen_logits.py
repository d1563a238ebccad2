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
    """Candidates of a call's scored tokens, each after its own edit."""
    logits, best = call.outputs()
    return select_candidates(ChosenLogits(decoder, logits, best), row_requests)
