"""The runner over OpenVINO: keys and values in blocks, the choice of tokens in the graph.

Decisions D99, D100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Growth
from inference.engine.runners.candidates import CandidateRequest, Candidates
from inference.engine.runners.openvino.blocks import BlockTable, SharedBlocks
from inference.engine.runners.openvino.compiled_decoder import (
    CompiledDecoder,
    DecoderCall,
    Span,
    source_length,
    span_of,
)
from inference.engine.runners.openvino.prompt_images import Arrays, ImageRows
from inference.engine.runners.ort.runner import align_tokens
from inference.engine.runners.ort.sessions import pad_right
from inference.engine.runners.protocol import Capabilities, Prefill, Prompt, RaggedGroup, Runner
from inference.engine.state.group_state import BufferShape, MemoryModel
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
            self.sources.write_held(0, decoder.encode([prompt]))
            self.sources.admit(self._done, source_length(prompt))
            self._call.bind_sources(self.sources, slice(0, 1))
        except Exception:
            self.release()
            raise

    @property
    def remaining_tokens(self) -> int:
        return len(self._token_ids) - self._done

    @property
    def state_bytes(self) -> int:
        return self.sources.nbytes + (0 if self._images is None else self._images.nbytes)

    @property
    def shift(self) -> int:
        """From the place of each token behind the prompt to its position."""
        return 0 if self._images is None else self._images.last_shift

    def read(self, count: int) -> None:
        self._run(count, 1)

    def score(self, count: int, row_requests: Sequence[CandidateRequest]) -> Candidates:
        self._run(count, len(row_requests))
        return self._decoder.candidates(self._call, row_requests)

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
        self._table.release()
        self._decoder.release(self._call)
        self.sources.release()

    def _run(self, count: int, scored: int) -> None:
        """One call, whose last `scored` tokens have logits."""
        tokens, span = self.next_tokens(count)
        self._call.run(tokens, [span], np.arange(count - scored, count))
        self.advance(count)


class PagedGroup(RaggedGroup):
    """Rows as tables of blocks.

    Row r of the group is table r; the rows of a slot share blocks as far as their tokens are equal.
    """

    def __init__(self, decoder: CompiledDecoder, width: int) -> None:
        self.width = width
        self._decoder = decoder
        self._sources = decoder.held_state(width)
        self._tables: list[BlockTable] = []
        self._shifts: list[int] = []  # of each slot, from places to positions
        self._call: DecoderCall | None = None
        self._bound: object = None
        self._beside: tuple[PagedPrefill, int, CandidateRequest | None] | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes of the sources; blocks are counted by their pool."""
        return self._sources.nbytes

    @property
    def blocks_of_step(self) -> int:
        return sum(
            table.missing(length, 1)
            for table, length in zip(self._tables, self._lengths(), strict=True)
        )

    def admit(
        self, prompts: Sequence[Prompt], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        first = len(self._sources)
        self._add_slots(prompts)
        try:
            return self._prefill(prompts, first, row_requests)
        except Exception:
            self._drop_slots(first)
            raise

    def admit_deferred(self, prompts: Sequence[Prompt]) -> None:
        assert self.width == 1
        self._add_slots(prompts)

    def admit_prefilled(self, prefill: Prefill, row_request: CandidateRequest) -> Candidates:
        """The group takes the blocks over."""
        assert isinstance(prefill, PagedPrefill), "a prompt of another runner"
        candidates = prefill.finish(row_request)
        self.join(prefill)
        return candidates

    def join(self, prefill: Prefill) -> None:
        assert isinstance(prefill, PagedPrefill), "a prompt of another runner"
        assert not prefill.remaining_tokens
        slots = len(self._sources) + 1
        self._sources.ensure_capacity(slots, 1, prefill.sources.source_lengths[0])
        self._sources.adopt(prefill.sources)
        self._tables += [prefill.take_table(), *self._new_tables(self.width - 1)]
        self._shifts.append(prefill.shift)
        self._bound = None
        prefill.release()

    def copy_block(self, slot: int, start: int, stop: int) -> SharedBlocks:
        """Holds the blocks of these positions, too: nothing is copied."""
        pool, table = self._decoder.memory.pool, self._tables[slot * self.width]
        assert not start % pool.block_tokens
        blocks = table.blocks[start // pool.block_tokens : pool.blocks_of(stop)]
        pool.share(blocks)
        return SharedBlocks(tuple(blocks), pool)

    def step(
        self, token_ids: NDArray[np.int64], row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        copies: list[tuple[int, int]] = []
        spans = []
        for row, (table, length) in enumerate(zip(self._tables, self._lengths(), strict=True)):
            copies += table.extend(length, 1)
            shift = self._shifts[row // self.width]
            spans.append(Span(length, 1, table.blocks, shifts=shift))
        self._decoder.memory.copy(copies)
        candidates = self._run(token_ids, spans, row_requests)
        self._sources.advance_lengths()
        return candidates

    @property
    def pads_rows(self) -> bool:
        """Rows that attend to sources, in equal numbers."""
        return bool(self._sources.of(Growth.HOLD))

    def take_along(
        self, prefill: Prefill, count: int, row_request: CandidateRequest | None = None
    ) -> None:
        assert not self.pads_rows
        assert isinstance(prefill, PagedPrefill), "a prompt of another runner"
        self._beside = prefill, count, row_request

    def has_room(self, drafts: Sequence[Sequence[int]]) -> bool:
        needed = sum(
            table.missing(length, 1 + len(draft))
            for table, length, draft in zip(
                self._tables, self._sources.lengths, drafts, strict=True
            )
        )
        return needed <= self._decoder.memory.pool.free

    def step_with_drafts(
        self,
        token_ids: NDArray[np.int64],
        drafts: Sequence[Sequence[int]],
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """Each token is a row of its own, with the past of the tokens before it (D100): attention
        writes the keys of all rows before it reads any, so a row has the bits of a step of its own.
        Where sources require equal numbers, rows repeat their last token at the same place.
        """
        longest = max(map(len, drafts))
        rows = [[token, *draft] for token, draft in zip(token_ids.tolist(), drafts, strict=True)]
        copies: list[tuple[int, int]] = []
        spans: list[Span] = []
        tokens: list[int] = []
        each_row = zip(self._tables, self._sources.lengths, self._shifts, rows, strict=True)
        for table, past, shift, row in each_row:
            copies += table.extend(past, len(row))
            places = [*range(len(row))]
            if self.pads_rows:
                places += [len(row) - 1] * (1 + longest - len(row))
            tokens += [row[place] for place in places]
            spans += [Span(past + place, 1, table.blocks, shifts=shift) for place in places]
        self._decoder.memory.copy(copies)
        return self._run(np.array(tokens), spans, row_requests)

    def keep(self, counts: Sequence[int]) -> None:
        for slot, count in enumerate(counts):
            self._sources.lengths[slot] += count
            self._tables[slot].shorten(self._sources.lengths[slot])

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._tables[target].adopt(self._tables[source])

    def retire(self, slot: int) -> None:
        width, last = self.width, len(self._sources) - 1
        for table in self._tables[slot * width : (slot + 1) * width]:
            table.release()
        self._tables[slot * width : (slot + 1) * width] = self._tables[last * width :]
        del self._tables[last * width :]
        self._shifts[slot] = self._shifts[-1]
        self._shifts.pop()
        self._sources.retire(slot)
        self._bound = None

    def reserve(self, reservation: BufferShape, expected_sequences: int) -> None:
        self._sources.reservation = reservation
        self._sources.expected_sequences = expected_sequences

    def shrink(self) -> None:
        self._bound = None
        self._sources.shrink()

    def release(self) -> None:
        self._drop_slots(0)
        self._sources.release()
        if self._call is not None:
            self._decoder.release(self._call)
        self._call = None

    def _run(
        self,
        token_ids: NDArray[np.int64],
        spans: Sequence[Span],
        row_requests: Sequence[CandidateRequest],
    ) -> Candidates:
        """The call of a step, whose tokens are all scored, and of what is prefilled beside them."""
        call, scored = self._bound_call(slice(0, len(self._sources))), np.arange(len(token_ids))
        beside, self._beside = self._beside, None
        if beside is None:
            call.run(token_ids, spans, scored)
        else:
            prefill, count, last = beside
            tokens, span = prefill.next_tokens(count)
            token_ids = np.concatenate([token_ids, tokens])
            if last is not None:
                scored = np.append(scored, len(token_ids) - 1)
                row_requests = [*row_requests, last]
            call.run(token_ids, [*spans, span], scored)
            prefill.advance(count)
        return self._decoder.candidates(call, row_requests)

    def _lengths(self) -> Iterator[int]:
        """The length of each row."""
        return (length for length in self._sources.lengths for _ in range(self.width))

    def _new_tables(self, count: int) -> list[BlockTable]:
        return [BlockTable(self._decoder.memory.pool) for _ in range(count)]

    def _add_slots(self, prompts: Sequence[Prompt]) -> None:
        """Gives prompts slots with empty tables, their sources encoded."""
        sources = [source_length(prompt) for prompt in prompts]
        slots = len(self._sources) + len(prompts)
        self._bound = None
        self._sources.ensure_capacity(slots, 1, max(sources))
        self._sources.write_held(len(self._sources), self._decoder.encode(prompts))
        for source in sources:
            self._sources.admit(0, source)
        self._tables += self._new_tables(len(prompts) * self.width)
        self._shifts += [0] * len(prompts)

    def _drop_slots(self, first: int) -> None:
        for table in self._tables[first * self.width :]:
            table.release()
        del self._tables[first * self.width :]
        del self._shifts[first:]
        self._sources.truncate(first)
        self._bound = None

    def _prefill(
        self, prompts: Sequence[Prompt], first: int, row_requests: Sequence[CandidateRequest]
    ) -> Candidates:
        """Prefills prompts on the first row of their slots, in one call.

        Tokens that attend to sources belong to these in equal numbers: shorter prompts are padded,
        and later tokens are written over the padding.
        """
        encoder = self._decoder.images
        tokens = [prompt.token_ids for prompt in prompts]
        lengths = np.array([len(ids) for ids in tokens])
        if self._sources.of(Growth.HOLD):
            tokens = list(pad_right(tokens))
        images = [None if encoder is None else encoder.rows(prompt) for prompt in prompts]
        spans = []
        slots = range(first, first + len(prompts))
        for slot, ids, length, rows in zip(slots, tokens, lengths, images, strict=True):
            table = self._tables[slot * self.width]
            table.extend(0, len(ids))
            spans.append(span_of(0, len(ids), table.blocks, rows))
            self._sources.lengths[slot] = int(length)
            self._shifts[slot] = 0 if rows is None else rows.last_shift
        call = self._bound_call(slice(first, first + len(prompts)))
        begins = np.cumsum([0, *(len(ids) for ids in tokens[:-1])])
        scored = begins + lengths - 1
        call.run(np.concatenate(tokens), spans, scored)
        return self._decoder.candidates(call, row_requests)

    def _bound_call(self, slots: slice) -> DecoderCall:
        """This group's call, with the sources of these slots bound."""
        if self._call is None:
            self._call = self._decoder.call()
        layout = (slots, self._sources.layout)
        if self._bound != layout:
            self._call.bind_sources(self._sources, slots)
            self._bound = layout
        return self._call


class PagedRunner(Runner):
    """A compiled decoder and its blocks.

    Args:
        bundle: A generator's bundle with the graphs of a Transformer.
        threads: Of each call; 0 leaves the choice to OpenVINO.
        spare_bytes: Bound on released buffers of sources, and on vectors of images, that are kept
            for reuse.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(self, bundle: Bundle, threads: int, spare_bytes: int = 512 << 20) -> None:
        self._decoder = CompiledDecoder(bundle, threads, spare_bytes)
        self.vocabulary_size = self._decoder.vocabulary_size
        self.blocks = self._decoder.memory.pool
        self.footprint = MemoryModel.of(self._decoder.held)
        self.capabilities = Capabilities(
            defers_admission=self._decoder.images is None,  # a step takes no vectors of images
            takes_chunks=True,
            shares_prefixes=not self._decoder.held,
            scores_prompts=True,
        )

    @property
    def spare_bytes(self) -> int:
        decoder, pool = self._decoder, self._decoder.memory.pool
        images = 0 if decoder.images is None else decoder.images.nbytes
        held = pool.used * pool.block_bytes
        return decoder.buffers.spare_bytes + images + decoder.memory.nbytes - held

    def group(self, width: int) -> PagedGroup:
        return PagedGroup(self._decoder, width)

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> PagedPrefill:
        return PagedPrefill(self._decoder, prompt, cached)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        def run(arrays: Arrays) -> NDArray[np.float32]:
            [weights] = self._decoder.run("align", arrays).values()
            return cast(NDArray[np.float32], weights.copy())

        return align_tokens(self._decoder.manifest, prompt, token_ids, run)

    def trim(self) -> None:
        self._decoder.trim()

    def close(self) -> None:
        self._decoder.close()
