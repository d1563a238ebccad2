"""The runner over OpenVINO: keys and values in blocks, the choice of tokens in the graph.

Decision D99.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder
from inference.engine.runners.openvino.paged_group import PagedGroup, PagedPrefill
from inference.engine.runners.protocol import Capabilities, Prompt, Runner
from inference.engine.state.group_state import MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix
from inference.errors import InvalidRequest


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
        """Bytes kept for reuse; see `Runner.spare_bytes`."""
        decoder, pool = self._decoder, self._decoder.memory.pool
        images = 0 if decoder.images is None else decoder.images.nbytes
        held = pool.used * pool.block_bytes
        return decoder.buffers.spare_bytes + images + decoder.memory.nbytes - held

    def group(self, width: int) -> PagedGroup:
        """A new, empty group."""
        return PagedGroup(self._decoder, width)

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> PagedPrefill:
        """Starts a chunked prefill behind shared blocks; see `Runner.begin_prefill`."""
        return PagedPrefill(self._decoder, prompt, cached)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Attention of each generated token to the source, (tokens, S); see `Runner.align`."""
        if "align" not in self._decoder.manifest.graphs:
            raise InvalidRequest("this model has no alignment", field="return_alignment")
        forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)
        return self._decoder.align(prompt, forced)[len(prompt.token_ids) - 1 :]

    def trim(self) -> None:
        """Frees memory kept for speed alone."""
        self._decoder.trim()

    def close(self) -> None:
        """Frees the graphs."""
        self._decoder.close()
