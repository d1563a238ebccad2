"""The engine's runner over the PyTorch modules: the reference that ONNX is held against.

Written for clarity, not for speed: states are plain tensors, grown by padding. The search on top is
the serving engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.architecture import Graphs
from export.parity.float64 import in_float64
from export.parity.torch_group import Content, Prefilled, TorchGroup, source_input
from inference.bundle.manifest import Manifest, Role
from inference.engine.runners.prompt import Prompt
from inference.engine.runners.protocol import Group, Runner
from inference.engine.state.memory_model import MemoryModel
from inference.errors import InvalidRequest


class TorchRunner(Runner):
    """Eager modules. Prompts are prefilled one by one: a long one is no padding of others.

    Args:
        graphs: The modules, in eager form.
        manifest: For the vocabulary's size and the generation rules.
        is_exact: Whether they compute in float64.
        keeps_prompts: Whether the states of all prompts are kept, for searches of the same ones.
    """

    def __init__(
        self,
        graphs: Graphs,
        manifest: Manifest,
        *,
        is_exact: bool = False,
        keeps_prompts: bool = False,
    ) -> None:
        assert manifest.vocabulary_size is not None
        self._kept: dict[Content, Prefilled] | None = {} if keeps_prompts else None
        self.graphs = in_float64(graphs) if is_exact else graphs
        self._is_exact = is_exact
        self._images = manifest.images
        self.vocabulary_size = manifest.vocabulary_size
        self.footprint = MemoryModel()
        self.reads_whole_prompts = graphs.lowerings["step"].graph.whole_prompts
        self.whole_image_token = manifest.whole_image_token

    def group(self, width: int) -> Group:
        """A new, empty group."""
        return TorchGroup(
            self.graphs, width, self._images, is_exact=self._is_exact, kept=self._kept
        )

    @torch.no_grad()
    def align(self, prompt: Prompt, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Attention of each generated token to the source, (tokens, S); see `Runner.align`."""
        align = self.graphs.lowerings.get("align")
        if align is None:
            raise InvalidRequest("this model has no alignments", field="return_alignment")
        forced = torch.tensor([[*prompt.token_ids, *token_ids[:-1]]])
        feeds = [
            forced if port.role is Role.TOKENS else source_input(port.role, prompt)
            for port in align.graph.inputs
        ]
        weights: Tensor = align.module(*feeds)
        attention: NDArray[np.float32] = weights[0, len(prompt.token_ids) - 1 :].numpy()
        return attention
