"""InstructBLIP: BLIP-2's Q-Former reads the instruction beside its queries.

Paper: Dai et al. 2023, "InstructBLIP: Towards General-purpose Vision-Language Models with
Instruction Tuning", §2.3 and figure 3 (arXiv 2305.06500): queries and an instruction's words
attend to each other, queries alone to the image, so that what is found in it depends on what is
asked.
Checkpoints: `model_type: instructblip` with a language model of `LANGUAGE_MODELS`
(`Salesforce/instructblip-vicuna-7b`, `-flan-t5-xl`), which has a tokenizer of its own for the
Q-Former.

Legend: B images, N patches and the class token, Q queries, T words of an instruction, E width of
the image tower, F width of the queries, D width of the language model.

Differences from `transformers`: an image's vectors are computed once for an instruction, by
`admit`; a prompt of a decoder may hold several images, or none; T5's encoder reads one image with
its text, and the instruction in front of both; pixels come as uint8.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.decoder_graphs.image_tokens import image_token_graphs
from export.layers.blocks import MLP
from export.layers.images.vision import prepare_tower
from export.layers.qformer import QFormerConfig, QueryBlock
from export.models.decoders import gpt, llama
from export.models.encoder_decoders import t5
from export.models.vision import vit
from export.models.vision_language import blip_2
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config

LANGUAGE_MODELS: Mapping[str, Architecture] = {
    "llama": llama.LLAMA,
    "opt": gpt.OPT,
    "t5": t5.ARCHITECTURE,
}
"""`model_type` of `text_config` → the language model."""
_ENDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    **blip_2.ENDS,
}
"""What `transformers` takes where `text_config` says nothing."""


@dataclass(frozen=True, kw_only=True)
class Config(blip_2.Config):
    """BLIP-2's, and the instruction's vocabulary and positions."""

    vocabulary_size: int = key("vocab_size", 30522)
    positions: int = key("max_position_embeddings", 512)

    @property
    def limits(self) -> Limits:
        """Of the language model, and for an instruction of the Q-Former."""
        own = self.text.limits
        given = own.max_input_tokens or self.positions
        return own.model_copy(update={"max_input_tokens": min(self.positions, given)})


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model, or a token that it lacks.
    """
    section = ConfigReader(values).section("qformer_config")
    return section.read(Config, **vars(blip_2.read_config(values, LANGUAGE_MODELS)))


# ---------------------------------------------------------------------------------------- blocks


class InstructedBlock(QueryBlock):
    """Queries and words attend to each other; each have an MLP of their own.

    Args:
        reads_words: Whether a later block reads the words.
    """

    def __init__(self, config: QFormerConfig, *, reads_image: bool, reads_words: bool) -> None:
        super().__init__(config, reads_image=reads_image)
        self.reads_words = reads_words
        if reads_words:
            self.text_mlp = MLP(config.width, config.mlp_width, config.activation)
            self.text_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def read_instructed(
        self, queries: Tensor, words: Tensor, lengths: Tensor, patches: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, Q, F), (B, T, F), (B, N, E) → queries and words.

        Args:
            lengths: (B,) int32, of queries and words together.
        """
        x = torch.cat([queries, words], dim=1)
        x = self.attention_norm(x + self.attention(x, lengths))
        queries, words = x[:, : queries.shape[1]], x[:, queries.shape[1] :]
        if self.reads_words:
            words = self.text_norm(words + self.text_mlp(words))
        return self.finish_queries(queries, patches), words


# --------------------------------------------------------------------------------------- network


class InstructedQFormer(nn.Module):
    """Queries, an instruction, and what the former find in an image."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        shape = config.qformer
        self.queries = nn.Parameter(torch.zeros(1, shape.queries, shape.width))
        self.tokens = nn.Embedding(config.vocabulary_size, shape.width)
        self.positions = nn.Embedding(config.positions, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.blocks = nn.ModuleList(
            InstructedBlock(
                shape,
                reads_image=layer % shape.cross_every == 0,
                reads_words=layer + 1 < shape.layers,
            )
            for layer in range(shape.layers)
        )

    def forward(self, patches: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, N, E), (B, T) right-padded, (B,) int32 → (B, Q, F)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        places = places.clamp(max=self.positions.num_embeddings - 1)  # padding may lie beyond
        words = self.norm(self.tokens(tokens) + self.positions(places))
        queries = self.norm(self.queries.expand(patches.shape[0], -1, -1))
        total = lengths + self.queries.shape[1]
        for block in self.blocks:
            assert isinstance(block, InstructedBlock)
            queries, words = block.read_instructed(queries, words, total, patches)
        return queries


class ImageEncoder(nn.Module):
    """Image tower, Q-Former and projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = vit.ViT(config.image)
        self.qformer = InstructedQFormer(config)
        self.projection = nn.Linear(config.qformer.width, config.text.width)

    def forward(self, pixels: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, (B, T), (B,) → (B, Q, D)."""
        return self.projection(self.qformer(self.vit(pixels), tokens, lengths))


class InstructBlip(blip_2.Blip2):
    """BLIP-2 whose image encoder reads instructions."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ImageEncoder(config))


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "qformer.encoder.layer", "encoder.qformer.blocks"
    words = {"intermediate.dense": "text_mlp.up", "output.dense": "text_mlp.down"}
    words["output.LayerNorm"] = "text_norm"
    last = config.qformer.layers - 1
    table: Names = {
        **{f"{theirs}.*.{name}": f"{ours}.*.{own}" for name, own in words.items()},
        **{f"{theirs}.{last}.{name}": None for name in words},  # that nothing reads
        "qformer.embeddings.word_embeddings": "encoder.qformer.tokens",
        "qformer.embeddings.position_embeddings": "encoder.qformer.positions",
        "qformer.embeddings.layernorm": "encoder.qformer.norm",
        "qformer.embeddings.position_ids": None,
    }
    plain = blip_2.rename(config)
    return Rename(plain.table | table, tied=plain.tied)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: InstructBlip, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, T dynamic; B, S with T5) and `step` (R, T, P, B, S dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image, model.config.image.image)
    assert isinstance(model.config, Config)
    vocabulary = model.config.vocabulary_size
    if isinstance(model.language, t5.T5):
        return blip_2.source_graphs(model, model.language, image, vocabulary)
    return image_token_graphs(
        model.encoder, model.decoder, image, model.images, instruction_vocabulary=vocabulary
    )


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    blip_2.ARCHITECTURE,
    name="instructblip",
    read_config=read_config,
    build=InstructBlip,
    rename=rename,
    graphs=graphs,
    generation=partial(blip_2.generation, defaults=_ENDS),
    reads_instructions=True,
)
