"""X-CLIP: videos, and texts whose vectors each video changes.

Paper: Ni et al. 2022, "Expanding Language-Image Pretrained Models for General Video Recognition",
§3 (arXiv 2208.02816): in each block of CLIP's image tower the frames exchange one message; a small
Transformer makes one vector of theirs; a video's patches change the vectors of the labels.
Checkpoints: `model_type: xclip` (`microsoft/xclip-*`), class `XCLIPModel`.

Legend: B videos, F frames, N patches, D width of the image tower, T text positions, K texts of a
video, E width of the common space.

Differences from `transformers`: videos, texts, and what a video makes of texts are three graphs,
because a text is embedded once for all videos; pixels come as uint8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, lower_stateless
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, WeightLayout, projections
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.blocks import BASE, MLP, BlockConfig, EncoderBlock, make_encoder_blocks
from export.models.dual_encoders import clip, clipseg
from export.text_encoders.declaration import TEXTS
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(clip.Config):
    """CLIP's towers, and what is between them.

    Attributes:
        frames: F.
        mixer: Blocks that read a video's frames.
        prompts: Blocks that change texts.
    """

    frames: int
    mixer: BlockConfig
    prompts: BlockConfig


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a value that is not supported, or heads that do not share out a width.
    """
    reader = ConfigReader(values)
    image = clip.read_image(reader)
    # The largest id of a text is its end token, whatever the file says, as in `transformers`.
    text = replace(clip.read_text(reader, clip.TEXT_DEFAULTS), end_token=None)
    width = reader.integer("projection_dim", 512)
    video = clip.tower_section(reader, "vision", {})
    video.refuse_unless(mit_hidden_size=width)
    sizes = {**clip.TEXT_DEFAULTS, "hidden_size": width, "num_hidden_layers": 1}
    names = {name: f"mit_{name}" for name in BASE}
    mixer = ConfigReader(video.values, video.place, sizes, names).read(BlockConfig)
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 4 * width}
    sizes |= {"layer_norm_eps": text.tower.norm_epsilon}
    names = {
        "num_hidden_layers": "prompt_layers",
        "hidden_size": "projection_dim",
        "num_attention_heads": "prompt_num_attention_heads",
        "hidden_act": "prompt_hidden_act",
    }
    prompts = ConfigReader(values, defaults=sizes, names=names).read(BlockConfig)
    return reader.read(
        Config,
        image=image,
        text=text,
        frames=video.integer("num_frames", 8),
        mixer=mixer,
        prompts=replace(prompts, heads=replace(prompts.heads, bias=False)),
    )


# --------------------------------------------------------------------------------------- network


class FrameBlock(EncoderBlock):
    """A frame attends to itself and to a message, which it made with the other frames (§3.2)."""

    def __init__(self, config: BlockConfig, frames: int) -> None:
        norm = partial(nn.LayerNorm, config.width, eps=config.norm_epsilon)
        mlp = MLP(config.width, config.mlp_width, config.activation)
        super().__init__(SelfAttention(config.heads), mlp, norm, is_norm_first=True)
        self.frames = frames
        self.message = nn.Linear(config.width, config.width)
        self.message_norm = norm()
        self.message_attention = SelfAttention(config.heads)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B·F, 1 + N, D) → (B·F, 1 + N, D)."""
        message = self.message(x[:, 0]).unflatten(0, (-1, self.frames))  # (B, F, D)
        message = message + self.message_attention(self.message_norm(message))
        whole = torch.cat([x, message.flatten(0, 1)[:, None]], dim=1)
        return self.finish(x, self.attention(self.attention_norm(whole))[:, :-1])


class VideoTower(clip.VisionTransformer):
    """Frames → the video's vector, and its patches for `Labels`."""

    def __init__(self, config: Config) -> None:
        tower = config.image.tower
        super().__init__(tower, config.image.image, config.image.patch)
        self.frames = config.frames
        self.blocks = nn.ModuleList(FrameBlock(tower, config.frames) for _ in range(tower.layers))
        self.projection = nn.Linear(tower.width, config.embedding_width, bias=False)
        self.frame_positions = nn.Parameter(torch.zeros(1, config.frames, config.mixer.width))
        self.frame_blocks = make_encoder_blocks(config.mixer, is_norm_first=True)
        self.patch_norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.patch_projection = nn.Linear(tower.width, config.embedding_width, bias=False)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, F, height, width, 3) uint8 → (B, E) of length one, (B, N, E) means over frames."""
        x = self.hidden(pixels.flatten(0, 1))
        frames = self.projection(self.norm(x[:, 0])).unflatten(0, (-1, self.frames))
        patches = self.patch_projection(self.patch_norm(x[:, 1:]))
        return self.mix(frames), patches.unflatten(0, (-1, self.frames)).mean(dim=1)

    def mix(self, frames: Tensor) -> Tensor:
        """(B, F, E) → (B, E), of length one (§3.2, multi-frame integration transformer)."""
        x = frames + self.frame_positions
        for block in self.frame_blocks:
            x = block(x)
        return functional.normalize((frames + x).mean(dim=1), dim=-1)


class LabelBlock(nn.Module):
    """Texts attend to a video's patches."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.cross = CrossAttention(config.heads)
        self.cross_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = MLP(config.width, config.mlp_width, config.activation)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def forward(self, x: Tensor, patches: Tensor) -> Tensor:
        """(B, K, E), (B, N, E) → (B, K, E)."""
        x = x + self.cross(self.cross_norm(x), self.cross.project_kv(patches))
        return x + self.mlp(self.mlp_norm(x))


class Labels(nn.Module):
    """Vectors of texts as a video changes them (§3.3, video-specific prompting)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, epsilon = config.embedding_width, config.image.tower.norm_epsilon
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.blocks = nn.ModuleList(
            LabelBlock(config.prompts) for _ in range(config.prompts.layers)
        )
        self.scale = nn.Parameter(torch.zeros(width))

    def forward(self, patches: Tensor, texts: Tensor) -> Tensor:
        """(B, N, E), (B, K, E) → (B, K, E), of length one."""
        patches, x = self.norm(patches), texts
        for block in self.blocks:
            x = block(x, patches)
        return functional.normalize(texts + self.scale * x, dim=-1)


class XCLIP(clip.CLIP):
    """The three graphs' networks, and the trained temperature."""

    image: VideoTower
    text: clipseg.TextTower

    def __init__(self, config: Config) -> None:
        text = clipseg.TextTower(config.text, config.embedding_width)
        super().__init__(VideoTower(config), text)
        self.labels = Labels(config)


def zero_shot_section(model: XCLIP, checkpoint: Checkpoint) -> dict[str, Any]:
    """The temperature; labels have no template, as in training."""
    return {**clip.zero_shot_section(model, checkpoint), "templates": ["{}"]}


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    layer, block = "vision_model.encoder.layers.*", "image.blocks.*"
    prompt, label = "prompts_generator.decoder.*", "labels.blocks.*"
    table: dict[str, Entry] = {
        **clip.rename(config).table,
        f"{layer}.message_fc": f"{block}.message",
        f"{layer}.message_ln": f"{block}.message_norm",
        **projections(f"{layer}.message_attn", f"{block}.message_attention"),
        "mit.position_embedding": "image.frame_positions",
        **clip.layer_names("mit.encoder.layers.*", "image.frame_blocks.*"),
        "prompts_visual_layernorm": "image.patch_norm",
        "prompts_visual_projection": WeightLayout(
            ("image.patch_projection.weight",), is_transposed=True
        ),
        "prompts_generator.layernorm": "labels.norm",
        "prompts_generator.alpha": "labels.scale",
        **projections(f"{prompt}.cross_attn", f"{label}.cross"),
        f"{prompt}.cross_attn.proj": f"{label}.cross.out",
        f"{prompt}.norm1": f"{label}.cross_norm",
        f"{prompt}.norm3": f"{label}.mlp_norm",
    }
    table["vision_model.pre_layernorm"] = table.pop("vision_model.pre_layrnorm")
    for number in range(config.prompts.layers):
        theirs, ours = f"prompts_generator.decoder.{number}.mlp", f"labels.blocks.{number}.mlp"
        table |= {f"{theirs}.0": f"{ours}.up", f"{theirs}.3": f"{ours}.down"}
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: XCLIP, image: ImageSpec | None) -> Graphs:
    """A graph for videos (B dynamic), one for texts (B and T), one for both's vectors (B and K)."""
    towers = clip.tower_graphs(model, image, TEXTS, model.text.projection.out_features)
    given = towers.lowerings["image"].graph
    (pixels,), (embedding,) = given.inputs, given.outputs
    shape = ("B", model.image.frames, *pixels.shape[1:])
    count, width = len(model.image.positions) - 1, embedding.shape[-1]
    patches = Port(name="patches", dtype="float32", shape=("B", count, width), role=Role.HIDDEN)
    texts = Port(name="texts", dtype="float32", shape=("B", "K", width), role=Role.CONDITIONS)
    changed = embedding.model_copy(update={"shape": texts.shape})
    videos = (pixels.model_copy(update={"shape": shape}),)
    lowerings = {
        **towers.lowerings,
        "image": lower_stateless(model.image, videos, embedding, patches),
        "labels": lower_stateless(model.labels, (patches, texts), changed, traced_sizes={"K": 9}),
    }
    return replace(towers, lowerings=lowerings, parts={**towers.parts, "labels": "-labels"})


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="xclip",
    tasks={"zero-shot": zero_shot_section, "embed": clipseg.embed_section},
    read_config=read_config,
    build=XCLIP,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
)
