"""The runner over ONNX Runtime: bound buffers, caches written in place.

Keys and values never pass through Python, and on devices other than the CPU never leave the
device: the host fetches candidates, and EMIT rows that a request needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle, Growth, Manifest, Role, State
from inference.engine.runners.ort.admission import source_input
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.runners.ort.greedy_graph import STEPS
from inference.engine.runners.ort.group import OrtGroup, OrtPrefill
from inference.engine.runners.ort.sessions import OrtSessions
from inference.engine.runners.protocol import Capabilities, Prompt, Runner
from inference.engine.state.device import Device
from inference.engine.state.group_state import MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix
from inference.errors import InvalidRequest


class OrtRunner(Runner):
    """Sessions of one bundle's graphs.

    Args:
        bundle: A generator's bundle.
        threads: Intra-op threads of the sessions; where `step` is small there is one.
        spare_bytes: Bound on released buffers and on states of images that are kept for reuse.
        device: Where states and logits live; by default the CPU.

    Raises:
        BundleError: a graph does not load, or needs what this runner does not support.
    """

    def __init__(
        self,
        bundle: Bundle,
        threads: int,
        spare_bytes: int = 512 << 20,
        device: Device | None = None,
    ) -> None:
        manifest = bundle.manifest
        self._sessions = OrtSessions(bundle, device or CpuDevice(), threads, spare_bytes)
        self.vocabulary_size = self._sessions.vocabulary_size
        self.footprint = MemoryModel.of(manifest.states)
        reads_whole_prompts = manifest.graphs["step"].whole_prompts
        self.capabilities = Capabilities(
            defers_admission=True,
            takes_chunks=True,
            greedy_steps=STEPS if self._sessions.has_greedy else 0,
            shares_prefixes=not reads_whole_prompts and _shares_prefixes(manifest),
            reads_whole_prompts=reads_whole_prompts,
            whole_image_token=manifest.whole_image_token,
            keeps_buffers=self._sessions.device.keeps_addresses,
        )

    @property
    def spare_bytes(self) -> int:
        """Bytes of released arenas; see `Runner.spare_bytes`."""
        return self._sessions.pool.spare_bytes

    @property
    def free_bytes(self) -> int | None:
        """See `Runner.free_bytes`."""
        return self._sessions.device.free_bytes

    def group(self, width: int) -> OrtGroup:
        """A new, empty group."""
        return OrtGroup(self._sessions, width)

    def begin_prefill(self, prompt: Prompt, cached: CachedPrefix[Block]) -> OrtPrefill:
        """Starts a chunked prefill; see `Runner.begin_prefill`."""
        return OrtPrefill(self._sessions, prompt, cached)

    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Attention of each generated token to the source, (tokens, S); see `Runner.align`."""
        graph = self._sessions.manifest.graphs.get("align")
        if graph is None:
            raise InvalidRequest("this model has no alignment", field="return_alignment")
        forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)[None]
        arrays = {
            tensor.name: forced if tensor.role is Role.TOKENS else source_input(tensor, [prompt])
            for tensor in graph.inputs
        }
        output, device = graph.output(Role.EMIT), self._sessions.device
        assert output is not None
        (weights,) = device.run(self._sessions.align, [output.name], arrays)
        return device.fetch_floats(weights)[0, len(prompt.token_ids) - 1 :]

    def trim(self) -> None:
        """Frees spare buffers; arenas that keep their addresses stay, and states of images, because
        the next turn of a conversation comes later than that.
        """
        self._sessions.pool.clear()
        self._sessions.device.trim()

    def close(self) -> None:
        """Frees the sessions."""
        self._sessions.close()


def _shares_prefixes(manifest: Manifest) -> bool:
    """Whether a prefix's states are caches, counts of its tokens, and vectors of its images."""
    counts_images = any(state.counted_token is not None for state in manifest.states)

    def follows(state: State) -> bool:
        if state.growth is Growth.APPEND:
            return state.admit_output is None
        return counts_images if state.growth is Growth.HOLD else state.counted_token is not None

    has_caches = any(state.growth is Growth.APPEND for state in manifest.states)
    return has_caches and all(map(follows, manifest.states))
