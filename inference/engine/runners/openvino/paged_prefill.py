"""A prompt that is prefilled in chunks, in blocks of its own that its group takes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Growth
from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.openvino.block_table import BlockTable, SharedBlocks
from inference.engine.runners.openvino.chosen_logits import candidates_of
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder, source_length
from inference.engine.runners.openvino.decoder_call import Span, span_of
from inference.engine.runners.openvino.prompt_images import ImageRows
from inference.engine.runners.prompt import Prompt
from inference.engine.runners.protocol import Prefill
from inference.engine.state.prefix_cache import Block, CachedPrefix


class PagedPrefill(Prefill):
    """All blocks of the prompt are allocated at its beginning, so that it cannot run out of them.

    Attributes:
        sources: One sequence's source.
    """

    def __init__(
        self, decoder: CompiledDecoder, prompt: Prompt, cached: CachedPrefix[Block]
    ) -> None:
        self._decoder, self._token_ids = decoder, prompt.token_ids
        parts = cast(Sequence[SharedBlocks], cached.blocks)
        shared = [block for part in parts for block in part.blocks]
        self._table = BlockTable(decoder.memory.pool, shared)
        self._done = cached.tokens
        self.sources = decoder.held_state(1)
        self._images: ImageRows | None = None
        self._call = decoder.call()
        try:
            if decoder.images is not None:
                self._images = decoder.images.rows(prompt, self._done)
            decoder.memory.copy(self._table.extend(self._done, self.remaining_tokens))
            self.sources.ensure_capacity(1, 1, source_length(prompt))
            values = decoder.encode([prompt])
            for arena in self.sources.of(Growth.HOLD):
                assert arena.state.admit_output is not None
                arena.write(0, values[arena.state.admit_output])
            self.sources.admit(self._done, source_length(prompt))
            self._call.bind_sources(self.sources, slice(0, 1))
        except Exception:
            self.release()
            raise

    @property
    def remaining_tokens(self) -> int:
        """Tokens not prefilled yet."""
        return len(self._token_ids) - self._done

    @property
    def state_bytes(self) -> int:
        """Bytes of the source, or of the images."""
        return self.sources.nbytes + (0 if self._images is None else self._images.nbytes)

    @property
    def shift(self) -> int:
        """From the place of each token behind the prompt to its position."""
        return 0 if self._images is None else self._images.last_shift

    def read(self, count: int) -> None:
        """Prefills the next `count` tokens."""
        self._run(count, 1)

    def score(self, count: int, row_requests: Sequence[CandidateRequest]) -> Candidates:
        """Candidates after the last of the next `count` tokens; see `Prefill.score`."""
        self._run(count, len(row_requests))
        return candidates_of(self._decoder, self._call, row_requests)

    def finish(self, row_request: CandidateRequest) -> Candidates:
        """Prefills the rest; the candidates after the prompt."""
        return self.score(self.remaining_tokens, [row_request])

    def next_tokens(self, count: int) -> tuple[NDArray[np.int64], Span]:
        """The next tokens as a part of a call."""
        start, stop = self._done, self._done + count
        span = span_of(start, stop, self._table.blocks, self._images)
        return self._token_ids[start:stop], span

    def advance(self, count: int) -> None:
        """Counts the next tokens as prefilled."""
        self._done += count
        self.sources.lengths[0] = self._done

    def take_table(self) -> BlockTable:
        """The blocks of the whole prompt, which are no longer this prefill's."""
        table, self._table = self._table, BlockTable(self._decoder.memory.pool)
        return table

    def release(self) -> None:
        """Gives back what it still holds."""
        self._table.release()
        self._decoder.release(self._call)
        self.sources.release()

    def _run(self, count: int, scored: int) -> None:
        """One call, whose last `scored` tokens have logits."""
        tokens, span = self.next_tokens(count)
        self._call.run(tokens, [span], np.arange(count - scored, count))
        self.advance(count)
