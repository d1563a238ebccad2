"""CLIP as open_clip stores it: a ViT or a ResNet beside the text tower.

Paper: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
Supervision", §2.4 (arXiv 2103.00020).
Checkpoints: folders with `open_clip_config.json` and `open_clip_model.safetensors` (`laion/CLIP-*`,
`timm/*_clip*`), whose tensors have the names of CLIP's published code. The ViT and the text tower
are those of `clip.py`, the ResNet that of `clip_resnet.py`.

Legend: D width of a tower, E width of the common space.

Differences from open_clip: those of `clip.py`; texts are not padded to the context length; their
tokens are those of the folder's `tokenizer.json`, while open_clip's own tokenizer also repairs
broken Unicode (ftfy) and resolves HTML entities first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import OPEN_CLIP_CONFIG
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, WeightLayout, packed_projections
from export.layers.attention.heads import Heads
from export.layers.blocks import BlockConfig
from export.models.dual_encoders import clip, clip_resnet
from export.models.dual_encoders.clip import CLIP, ImageConfig, ImageTower, TextConfig, TextTower
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

NORM_EPSILON = 1e-5
_MODEL: dict[str, object] = {
    "custom_text": False,
    "nonscalar_logit_scale": False,
    "multimodal_cfg": None,
    "init_logit_bias": None,
}
_BLOCKS: dict[str, object] = {
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "output_tokens"), False),
    **dict.fromkeys(("scale_attn_inner", "scale_attn", "scale_fc"), False),
    **dict.fromkeys(("ls_init_value", "act_kwargs", "block_type"), None),
}
_VIT: dict[str, object] = _BLOCKS | {
    **dict.fromkeys(("attentional_pool", "no_ln_pre", "global_average_pool"), False),
    "input_patchnorm": False,
    "timm_model_name": None,
    "pool_type": "tok",
}
_TEXT: dict[str, object] = _BLOCKS | {
    **dict.fromkeys(("embed_cls", "no_causal_mask", "proj_bias"), False),
    **dict.fromkeys(("hf_model_name", "hf_tokenizer_name"), None),
    **dict.fromkeys(("tokenizer_mode", "tokenizer_kwargs"), None),
    "pool_type": "argmax",
    "proj_type": "linear",
}
"""Fields of a section of which one value is supported."""

_READ = "layers width mlp_ratio norm_kwargs".split()
_VISION_FIELDS = [*_VIT, *_READ, "head_width", "patch_size", "image_size"]
_TEXT_FIELDS = [*_TEXT, *_READ, "heads", "context_length", "vocab_size"]
_MODEL_FIELDS = [*_MODEL, "embed_dim", "vision_cfg", "text_cfg", "quick_gelu"]
_TRAINING = "init_logit_scale cast_dtype output_dict patch_dropout".split()
_WITHOUT_EFFECT = [
    "pos_embed_type",  # positions are stored, whatever they were made from
    "final_ln_after_pool",  # one position is pooled, so the order does not matter
    *("pad_id", "eos_id"),  # of other ways of pooling
    *("attn_pooler_queries", "attn_pooler_heads", "n_queries"),  # of other towers, from here on
    *("hf_model_pretrained", "hf_proj_type", "hf_pooler_type", "timm_model_pretrained"),
    *("timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path"),
]


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both towers and the common space."""

    image: ImageConfig | clip_resnet.Config
    text: TextConfig
    embedding_width: int


def read_config(values: Mapping[str, Any]) -> Config:
    """`open_clip_config.json`; defaults are open_clip's own.

    Raises:
        CheckpointError: names a field that is not supported.
    """
    model = ConfigReader(values, OPEN_CLIP_CONFIG).section("model_cfg")
    model.refuse_unless(**_MODEL)
    model.refuse_others(*_MODEL_FIELDS, *_TRAINING)
    activation = "quick_gelu" if model.flag("quick_gelu", False) else "gelu"
    image = model.section("vision_cfg", {"patch_size": 16})
    text = model.section("text_cfg", names={"max_position_embeddings": "context_length"})
    image.refuse_others(*_VISION_FIELDS, *_TRAINING, *_WITHOUT_EFFECT)
    text.refuse_others(*_TEXT_FIELDS, *_WITHOUT_EFFECT)
    is_resnet = isinstance(image.values.get("layers"), list)
    return Config(
        clip_resnet.read_config(image) if is_resnet else _read_vit(image, activation),
        _read_text_tower(text, activation),
        embedding_width=model.integer("embed_dim"),
    )


def _read_vit(reader: ConfigReader, activation: str) -> ImageConfig:
    reader.refuse_unless(**_VIT)
    width, head_width = reader.integer("width", 768), reader.integer("head_width", 64)
    tower = _read_tower(reader, width, _count_heads(reader, width, head_width), activation)
    return reader.read(ImageConfig, tower=tower)


def _read_text_tower(reader: ConfigReader, activation: str) -> TextConfig:
    reader.refuse_unless(**_TEXT)
    width, heads = reader.integer("width", 512), reader.integer("heads", 8)
    reader.divide(width, heads)
    tower = _read_tower(reader, width, heads, activation)
    return reader.read(TextConfig, tower=tower, end_token=None)


def _read_tower(reader: ConfigReader, width: int, heads: int, activation: str) -> BlockConfig:
    norm = reader.values.get("norm_kwargs") or {}
    if set(norm) - {"eps"}:
        raise CheckpointError(f"{reader.place}: norm_kwargs may hold eps only, not {norm!r}")
    return BlockConfig(
        layers=reader.layers("layers", 12),
        heads=Heads(width, heads),
        mlp_width=int(width * reader.number("mlp_ratio", 4.0)),
        activation=activation,
        norm_epsilon=ConfigReader(norm, reader.place).number("eps", NORM_EPSILON),
    )


def _count_heads(reader: ConfigReader, width: int, head_width: int) -> int:
    """Heads of a tower's width.

    Raises:
        CheckpointError: the head width does not divide it.
    """
    if width % head_width:
        raise CheckpointError(
            f"{reader.place}: width {width} is no multiple of head_width {head_width}"
        )
    return width // head_width


# --------------------------------------------------------------------------------------- network


def build(config: Config) -> CLIP:
    """Both towers and the trained temperature."""
    width = config.embedding_width
    if isinstance(config.image, clip_resnet.Config):
        return CLIP(clip_resnet.ResNetTower(config.image, width), TextTower(config.text, width))
    return CLIP(ImageTower(config.image, width), TextTower(config.text, width))


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The names of CLIP's published code → ours."""
    is_resnet = isinstance(config.image, clip_resnet.Config)
    table: dict[str, Entry] = {
        **(clip_resnet.names("visual", "image") if is_resnet else _vit_names()),
        **_block_names("transformer", "text"),
        "token_embedding": "text.tokens",
        "positional_embedding": "text.positions",
        "ln_final": "text.norm",
        "text_projection": WeightLayout(("text.projection.weight",), is_transposed=True),
        "logit_scale": "logit_scale",
        **dict.fromkeys(("attn_mask", "input_resolution", "context_length", "vocab_size")),
    }
    return Rename(table)


def _vit_names() -> dict[str, Entry]:
    return {
        "visual.class_embedding": "image.class_token",
        "visual.conv1": "image.patches.projection",
        "visual.positional_embedding": "image.positions",
        "visual.ln_pre": "image.first_norm",
        "visual.ln_post": "image.norm",
        "visual.proj": WeightLayout(("image.projection.weight",), is_transposed=True),
        **_block_names("visual.transformer", "image"),
    }


def _block_names(theirs: str, ours: str) -> dict[str, Entry]:
    block, own = f"{theirs}.resblocks.*", f"{ours}.blocks.*"
    return {
        f"{block}.ln_1": f"{own}.attention_norm",
        **packed_projections(f"{block}.attn", f"{own}.attention"),
        f"{block}.ln_2": f"{own}.mlp_norm",
        f"{block}.mlp.c_fc": f"{own}.mlp.up",
        f"{block}.mlp.c_proj": f"{own}.mlp.down",
    }


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="open_clip",
    tasks={"zero-shot": clip.zero_shot_section},
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=clip.graphs,
    image_size=lambda config: config.image.image,
)
