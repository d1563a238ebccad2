"""What a model file declares: `ARCHITECTURE`, its last line (`export/models`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from export.checkpoint.checkpoint import Checkpoint
from export.config.weight_names import Rename
from export.tokenizer.tokenizer import languages, special_tokens
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Graph, Limits, State, Tensor
from inference.errors import CheckpointError


class LimitedByText:
    """A configuration with the limits of `text`, its language model or text tower."""

    text: Any

    @property
    def limits(self) -> Limits:
        """Of `text`; images take some of its positions where they are parts of prompts."""
        limits: Limits = self.text.limits
        return limits


class LimitedByPositions:
    """A configuration whose position table bounds each text."""

    positions: int

    @property
    def limits(self) -> Limits:
        """The limits of one text."""
        return Limits(max_input_tokens=self.positions)


@dataclass(frozen=True)
class Lowering:
    """One graph to export: a module whose `forward` takes the graph's inputs in their order.

    Attributes:
        is_fused: Attention becomes ONNX Runtime's fused operators, else standard ones.
        is_for_cuda: Recurrent layers whose operator has no CUDA kernel become a `Scan`, cached
            attention with a bias becomes standard operators.
        traced_sizes: Sizes of dynamic dimensions while the module is traced, where those of
            `to_onnx` would be no sizes of its inputs.
    """

    module: nn.Module
    graph: Graph
    is_fused: bool = True
    is_for_cuda: bool = False
    traced_sizes: Mapping[str, int] = field(default_factory=dict)


def lower_stateless(
    module: nn.Module, inputs: tuple[Tensor, ...], *outputs: Tensor, **fields: Any
) -> Lowering:
    """The one graph of a part of a stateless model.

    Args:
        fields: Of the `Lowering`.
    """
    return Lowering(module, Graph(file="model.onnx", inputs=inputs, outputs=outputs), **fields)


@dataclass(frozen=True)
class Graphs:
    """All graphs of a model.

    Attributes:
        lowerings: Graph name → what to export. Generators: `admit`, `step`, perhaps `align`.
        states: The decoder's states; none for stateless models.
        parts: Part → suffix of its Triton model (`{"text": "-text"}`); a stateless model has one
            graph a part, under the same key. The part without suffix holds the manifest.
        source_vocabulary: Tokens that a text encoder's table holds; verification draws from them.
        fields: Further manifest fields, where the image recipe decides on them.
    """

    lowerings: Mapping[str, Lowering]
    states: tuple[State, ...] = ()
    parts: Mapping[str, str] = field(default_factory=lambda: {"generate": ""})
    source_vocabulary: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def without_weights(self) -> Graphs:
        """The same graphs with no module to compute them: all that comparing ONNX files needs.

        The weights' memory is freed, although torch.export keeps references to the tensors.
        """
        for lowering in self.lowerings.values():
            for tensor in (*lowering.module.parameters(), *lowering.module.buffers()):
                storage = tensor.untyped_storage()
                if storage.resizable():
                    storage.resize_(0)
        bare = {
            key: replace(lowering, module=nn.Identity()) for key, lowering in self.lowerings.items()
        }
        return replace(self, lowerings=bare)


Section = Callable[[Any, Checkpoint], Mapping[str, Any] | None]
"""(network, checkpoint) → a task's section of the manifest; None where the checkpoint lacks what
the task needs, and is not served for it."""


def no_section(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a task that needs nothing beyond graphs and generation defaults."""
    return {}


def language_pairs(network: nn.Module, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of a translator: (source, target) pairs that the checkpoint declares."""
    return {"languages": languages(checkpoint)}


@dataclass(frozen=True)
class Architecture:
    """How one kind of checkpoint becomes a network and its graphs.

    Attributes:
        name: For people, in the manifest.
        tasks: Task → the fields of its section in the manifest, computed from network and
            checkpoint; the first task is the default. `inference/tasks` defines and validates them.
        read_config: `config.json` → the model's configuration; refuses what is not supported.
        build: Configuration → network, weights not yet loaded.
        rename: Configuration → the table of names.
        graphs: Network and image recipe (None where there is no image) → what is exported.
        tokenizer: How its text becomes ids; None for models without text.
        image_size: Configuration → (height, width) of its images, None for a checkpoint without
            images; None for models without images.
        image_recipe: Configuration → the recipe of its images, where `config.json` has it and no
            file of its own; `image_size` is then None.
        reads_text: Configuration → whether this checkpoint has the tokenizer, where its head
            decides.
        details: Network → further manifest fields.
        tasks_of: Configuration → those of `tasks` that this checkpoint serves, where its head
            decides; the first is the default. None: all of them.
        attention: Network that `graphs` prepared, image recipe → the graph of its attention
            pictures, a further part exported on request; None where there are none.
        reads_instructions: Whether the image encoder reads a prompt's words, for which the
            checkpoint has a second tokenizer.
        token_ids: Field of the configuration → text of the special token whose id it is, where
            `config.json` may leave it out and the tokenizer has it.
        control_tokens: Special tokens that are left out of an answer's text, where others are part
            of it; None: all of them.
        generation: Checkpoint → the generation parameters that apply to it, where they are neither
            in `generation_config.json` nor at the top of `config.json`. None: they are there.
    """

    name: str
    tasks: Mapping[str, Section]
    read_config: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    rename: Callable[[Any], Rename]
    graphs: Callable[[Any, ImageSpec | None], Graphs]
    tokenizer: Literal["sentencepiece_pair", "moses_pair", "tokenizers"] | None = "tokenizers"
    image_size: Callable[[Any], tuple[int, int] | None] | None = None
    image_recipe: Callable[[Any], ImageSpec] | None = None
    reads_text: Callable[[Any], bool] = lambda config: True
    details: Callable[[Any], Mapping[str, Any]] = lambda network: {}
    tasks_of: Callable[[Any], Sequence[str]] | None = None
    attention: Callable[[Any, ImageSpec], Lowering] | None = None
    generation: Callable[[Checkpoint], Mapping[str, Any]] | None = None
    token_ids: Mapping[str, str] = field(default_factory=dict)
    reads_instructions: bool = False
    control_tokens: frozenset[str] | None = None

    def configuration(self, checkpoint: Checkpoint) -> Any:
        """The configuration of a checkpoint, ids of the tokenizer included.

        Raises:
            CheckpointError: the tokenizer lacks a token that the configuration does not name.
        """
        missing = {
            name: text
            for name, text in self.token_ids.items()
            if checkpoint.config.get(name) is None
        }
        if not missing:
            return self.read_config(checkpoint.config)
        known = special_tokens(checkpoint)
        for text in missing.values():
            if text not in known:
                raise CheckpointError(f"{checkpoint.folder}: the tokenizer has no token {text}")
        ids = {name: known[text] for name, text in missing.items()}
        return self.read_config({**checkpoint.config, **ids})

    def served(self, config: Any) -> tuple[str, ...]:
        """The tasks that a configuration's checkpoint serves, the default first."""
        return tuple(self.tasks if self.tasks_of is None else self.tasks_of(config))

    def size_of(self, config: Any) -> tuple[int, int] | None:
        """(height, width) of the images that a configuration's checkpoint reads, if it does."""
        return None if self.image_size is None else self.image_size(config)
