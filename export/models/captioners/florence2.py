"""Florence-2: one encoder-decoder for every task of vision, which a sentence asks for.

Paper: Xiao et al. 2023, "Florence-2: Advancing a Unified Representation for a Variety of Vision
Tasks", §3 and figure 2 (arXiv 2311.06242): vectors of an image stand in front of a task's prompt in
BART's encoder; boxes and polygons of an answer are tokens of 1000 bins a side.
Checkpoints: `model_type: florence2` of `Florence2ForConditionalGeneration`, as `transformers` has
it (`florence-community/Florence-2-*`).

Legend: B images, h x w grid of the image tower, N = h·w, D width of the tower, S source positions.

Differences from `transformers`: pixels come as uint8; queries, keys and values of the image tower
are projected by three layers; image tokens beyond those of the image are ordinary ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import COMBINED_FILE
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.image_source import image_source_graphs
from export.layers.attention.windows import Grid
from export.layers.images.image_heads import mean_vector
from export.layers.images.vision import prepare_tower
from export.models.encoder_decoders import bart
from export.models.vision import davit
from export.tokenizer.prompt_images import leading_images
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.errors import CheckpointError

CAPTION, OBJECTS, PHRASES = "<CAPTION>", "<OD>", "<CAPTION_TO_PHRASE_GROUNDING>"
SENTENCES: Mapping[str, str] = {
    "<OCR>": "What is the text in the image?",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    CAPTION: "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    OBJECTS: "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
    PHRASES: "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
}
"""Task → the sentence that its training data asked for it with (`Florence2Processor`)."""
CONTROL_TOKENS = frozenset({"<s>", "</s>", "<pad>", "<unk>", "<mask>", "<image>"})
"""All others, `<loc_0>` to `<loc_999>` and `<poly>` among them, are parts of an answer."""


def prompts(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`images` of a section, with the sentences of tasks."""
    places = leading_images(network, checkpoint)["images"]
    return {"images": {**places, "sentences": SENTENCES}}


def captions(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of `caption`."""
    return {**prompts(network, checkpoint), "prompt": CAPTION}


def boxes(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of `detect`, with the phrases that the checkpoint's processor leaves out."""
    rules = checkpoint.json(COMBINED_FILE).get("post_processor_config") or {}
    ignored = (rules.get("phrase_grounding") or {}).get("banned_grounding_tokens") or ()
    asked = {"prompt": OBJECTS, "labelled": PHRASES, "ignored": list(dict.fromkeys(ignored))}
    return {**prompts(network, checkpoint), **asked}


# ---------------------------------------------------------------------------------------- config

_IMAGE_TOKEN = "image_token_id"
IMAGE: Grid = (768, 768)
"""Height and width of published checkpoints' images; the recipe decides."""


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both networks, and what is between them."""

    image: davit.Config
    text: bart.Config
    positions: int = key("max_position_embeddings", 50)
    """Rows, and columns, that have a learned position."""
    frames: int = key("max_temporal_embeddings", 100)
    """Positions in time, of which one image has the first."""
    image_token: int


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration.

    Raises:
        CheckpointError: the format of the model's first code, or networks that do not fit.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    vision, section = reader.section("vision_config"), reader.section("text_config")
    if "dim_embed" in vision.values:
        raise CheckpointError(
            f"{vision.place}: dim_embed is a field of the format before `transformers` had the "
            "model: take the converted checkpoint (florence-community/Florence-2-*)"
        )
    section.choice("model_type", ("bart",), "bart")
    section.refuse_unless(tie_word_embeddings=True)
    text = bart.read_config(section.values, bart.Form(has_output_bias=False))
    text = replace(text, has_tied_output=reader.flag("tie_word_embeddings", True))
    token = reader.token(_IMAGE_TOKEN, 51289, text.vocabulary_size)
    vision.refuse_unless(projection_dim=text.width)
    return vision.read(Config, image=davit.read_config(vision), text=text, image_token=token)


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """Image tower, positions, and projection of all patches and of their mean."""

    temporal: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.image.width
        self.config = config
        self.grid = config.image.grid(IMAGE)
        self.davit = davit.DaViT(config.image)
        self.rows = nn.Parameter(torch.zeros(config.positions, width // 2))
        self.columns = nn.Parameter(torch.zeros(config.positions, width - width // 2))
        self.register_buffer("temporal", torch.zeros(config.frames, width))
        self.projection = nn.Linear(width, config.text.width, bias=False)
        self.norm = nn.LayerNorm(config.text.width)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels of that size from now on, not a normalised image.

        Raises:
            CheckpointError: more rows or columns than there are positions.
        """
        self.grid = self.config.image.grid((image.shape[0], image.shape[1]))
        if min(self.grid) < 1 or max(self.grid) > self.config.positions:
            raise CheckpointError(
                f"an image of {image.shape[0]} x {image.shape[1]} has {self.grid[0]} x "
                f"{self.grid[1]} patches in the last stage, max_position_embeddings is "
                f"{self.config.positions}"
            )
        self.davit.prepare(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 1 + N, D of the text), the mean first."""
        x = self.davit(pixels) + self.places() + self.temporal[0]
        patches = x.flatten(1, 2)
        both = torch.cat([mean_vector(patches)[:, None], patches], dim=1)
        return self.norm(self.projection(both))

    def places(self) -> Tensor:
        """(h, w, D): of each patch, the vectors of its column and its row."""
        height, width = self.grid
        columns = self.columns[None, :width].expand(height, -1, -1)
        rows = self.rows[:height, None].expand(-1, width, -1)
        return torch.cat([columns, rows], dim=-1)


class Florence2(nn.Module):
    """Image encoder and BART."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageEncoder(config)
        self.language = bart.Bart(config.text)

    @property
    def decoder(self) -> bart.Decoder:
        """BART's."""
        return self.language.decoder

    @property
    def images(self) -> PromptImages:
        """How its sources hold an image."""
        count = 1 + self.encoder.grid[0] * self.encoder.grid[1]
        return PromptImages(positions=count, token_id=self.config.image_token, tokens=count)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    language, projector = bart.rename(config.text), "model.multi_modal_projector"
    table: dict[str, Entry] = {
        **davit.rename_network("model.vision_tower.", "encoder.davit."),
        f"{projector}.image_projection": "encoder.projection",
        f"{projector}.image_proj_norm": "encoder.norm",
        f"{projector}.image_position_embed.row_embeddings.weight": "encoder.rows",
        f"{projector}.image_position_embed.column_embeddings.weight": "encoder.columns",
        f"{projector}.visual_temporal_embed.pos_idx_to_embed": "encoder.temporal",
        **language.prefixed("model.language_model.", "language."),
        "lm_head.weight": "language.decoder.output",
    }
    tied = {f"language.{ours}": f"language.{other}" for ours, other in language.tied.items()}
    return Rename(table, tied=tied)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Florence2, image: ImageSpec | None) -> Graphs:
    """`admit` (B, S dynamic) and `step` (R, T, P, B, S dynamic; in place)."""
    image = prepare_tower(model.encoder, image)
    vocabulary = model.config.text.vocabulary_size
    texts = model.language.encoder
    return image_source_graphs(model.encoder, texts, model.decoder, image, model.images, vocabulary)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="florence2",
    tasks={"caption": captions, "generate": prompts, "detect": boxes},
    read_config=read_config,
    build=Florence2,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: IMAGE,
    token_ids={_IMAGE_TOKEN: "<image>"},
    control_tokens=CONTROL_TOKENS,
)
