"""A checkpoint as every step of an export takes it: each part is read once, when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import nn

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import INSTRUCTION_TOKENIZER, Checkpoint, open_checkpoint
from export.checkpoint.formats import code_of
from export.checkpoint.image_recipe import image_spec, limit_pixels
from export.checkpoint.load_network import load_network
from export.registry import architecture
from export.text_encoders.image_graphs import with_attention
from export.tokenizer.tokenizer import PAIRS, TokenizerFiles, fast_tokenizer, with_written_tokens
from export.tokenizer.tokenizer_json import FAST_FILE, read_file
from inference.bundle.inputs import INSTRUCTION, ImageSpec, TokenizerSpec
from inference.errors import CheckpointError

_OF_PROMPTS = {"generate", "chat"}
"""Tasks of models that read nothing but prompts; where there is a source, `generation_defaults`
requires a padding token."""


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of text and images into the graphs' inputs."""

    tokenizer: TokenizerSpec | None
    files: TokenizerFiles
    image: ImageSpec | None


class SourceModel:
    """A checkpoint with its architecture, and what follows from both.

    Args:
        declared: Its architecture; by default that of its `model_type`.
        memory_limit_bytes: Memory that its export may need; by default any.
        max_pixels: Of pictures that keep their size; by default `limit_pixels` decides.
        scratch: Folder of a file that holds the weights while they are exported; without it they
            are in memory.

    Raises:
        CheckpointError: no architecture has that `model_type`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        declared: Architecture | None = None,
        *,
        memory_limit_bytes: int | None = None,
        max_pixels: int | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.architecture = declared or _architecture(checkpoint)
        self._memory_limit_bytes = memory_limit_bytes
        self._max_pixels = max_pixels
        self._scratch = scratch

    @classmethod
    def open(cls, source: object) -> SourceModel:
        """The model of a folder, or of a name on the hub."""
        return cls(open_checkpoint(str(source)))

    @cached_property
    def configuration(self) -> Any:
        """What the model file reads of `config.json`.

        Raises:
            CheckpointError: it describes what the architecture does not support.
        """
        return self.architecture.configuration(self.checkpoint)

    @cached_property
    def image(self) -> ImageSpec | None:
        """The image recipe; None where the model reads no images.

        Raises:
            CheckpointError: its file is missing or not supported, or excludes `max_pixels`.
        """
        if self.architecture.size_of(self.configuration) is not None:
            return limit_pixels(image_spec(self.checkpoint), self._max_pixels)
        if self._max_pixels is not None:
            raise CheckpointError("--max-pixels: this model reads no pictures")
        recipe = self.architecture.image_recipe
        return recipe and recipe(self.configuration)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Tokenizer and image recipe, with the tokenizer's files.

        Raises:
            CheckpointError: files are missing or not supported.
        """
        declared, config = self.architecture, self.configuration
        if declared.tokenizer is None or not declared.reads_text(config):
            return Preprocessing(None, {}, self.image)
        if declared.tokenizer in PAIRS:
            tokenizer, files = PAIRS[declared.tokenizer](self.checkpoint)
        else:
            needs_padding = not set(declared.served(config)) <= _OF_PROMPTS
            tokenizer, files = fast_tokenizer(self.checkpoint, needs_padding=needs_padding)
        if declared.reads_instructions:
            name = f"{INSTRUCTION_TOKENIZER}.json"
            names = {**tokenizer.files, INSTRUCTION: name}
            tokenizer = tokenizer.model_copy(update={"files": names})
            content = read_file(self.checkpoint, f"{INSTRUCTION_TOKENIZER}/{FAST_FILE}")
            files = {**files, name: content}
        if declared.control_tokens is not None:
            written = with_written_tokens(files[FAST_FILE], declared.control_tokens)
            files = {**files, FAST_FILE: written}
        return Preprocessing(tokenizer, files, self.image)

    @cached_property
    def network(self) -> nn.Module:
        """The PyTorch network in evaluation mode, weights loaded.

        Raises:
            CheckpointError: lists every missing, unexpected and misshaped tensor.
            SetupError: the export needs more memory than the limit.
        """
        return load_network(
            partial(self.architecture.build, self.configuration),
            self.checkpoint,
            self.architecture.rename(self.configuration),
            self._memory_limit_bytes,
            self._scratch,
        )

    def graphs(self, *, has_attention: bool = False) -> Graphs:
        """What is exported of the network; with attention pictures as a further part on request."""
        graphs = self.architecture.graphs(self.network, self.image)
        if has_attention:
            return with_attention(self.architecture, self.network, graphs, self.image)
        return graphs


def _architecture(checkpoint: Checkpoint) -> Architecture:
    """The architecture of a checkpoint.

    Raises:
        CheckpointError: it is not in the registry; names the code that it would need.
    """
    try:
        return architecture(checkpoint.config.get("model_type"))
    except CheckpointError as error:
        code = code_of(checkpoint.config)
        if code is None:
            raise
        raise CheckpointError(
            f"{checkpoint.folder}: config.json names code of the checkpoint's own ({code}), which "
            f"is not run, and its {error.message}"
        ) from None
