"""Llama, and the language models of its shape.

Papers: Touvron et al. 2023, "LLaMA", §2.2 (arXiv 2302.13971): RMS norms in front of each sub-layer,
a gated MLP and rotary positions; Touvron et al. 2023, "Llama 2", §2.2 (arXiv 2307.09288): grouped
heads; Jiang et al. 2023, "Mistral 7B", §2 (arXiv 2310.06825): every layer attends to a window;
Yang et al. 2024, "Qwen2 Technical Report", §2.2 (arXiv 2407.10671), and Qwen2.5 (arXiv 2412.15115):
biased queries, keys and values; Yang et al. 2025, "Qwen3 Technical Report", §2 (arXiv 2505.09388):
norms of each head's queries and keys (Dehghani et al. 2023, arXiv 2302.05442); Bakouch et al. 2025,
"SmolLM3" (layers without positions: Yang et al. 2025, arXiv 2501.18795); Mishra et al. 2024,
"Granite Code Models" (arXiv 2405.04324; factors: Yang et al. 2022, arXiv 2203.03466); Groeneveld et
al. 2024, "OLMo", §2.1 (arXiv 2402.00838); Bellagente et al. 2024, "Stable LM 2 1.6B Technical
Report" (arXiv 2402.17834); Abdin et al. 2024, "Phi-3 Technical Report", §2 (arXiv 2404.14219);
Lozhkov et al. 2024, "StarCoder 2" (arXiv 2402.19173).
Checkpoints: `model_type: llama` (Llama 1 to 3, SmolLM2, TinyLlama), `mistral`, `qwen2`, `qwen3`,
`smollm3`, `granite`, `olmo`, `stablelm`, `phi3` and `starcoder2`. `gemma.py` has the same network.

Legend: R rows, T new positions, D width, V vocabulary.

Differences from `transformers`: inference only. Rotary scaling of other kinds than `rotary.py`
reads is refused. Dynamic scaling begins behind the last position that is served, so it changes
nothing; with LongRoPE as many positions are served as were trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, WeightLayout, projections
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.attention import CrossAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import TRAINED, read_rotary
from export.layers.blocks import MLP, DecoderBlock, GatedMLP, RMSNorm, Scale
from export.layers.decoder import TransformerDecoder, output_table
from export.text_encoders.decoder_heads import with_answers
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

ENDS = {"bos_token_id": 1, "eos_token_id": 2}
"""Where a checkpoint says nothing."""
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-6,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """The network's part of `config.json`; layers differ in window and rotary positions only.

    Attributes:
        norm: Width and `eps` → a norm.
        has_head_norms: Whether each head's queries and keys are normalised before they rotate.
        behind: What the outputs of sub-layers pass before they are added.
        logits_divisor: Logits are divided by it.
        logits_cap: Logits l become c · tanh(l / c).
        source_width: Of the vectors that cross-attention reads; None: there is no source.
    """

    has_mlp_bias: bool = key("mlp_bias", False)
    mlp: type[MLP] = GatedMLP
    norm: Callable[..., nn.Module] = RMSNorm
    has_head_norms: bool = False
    behind: Callable[[], nn.Module] = nn.Identity
    embedding_scale: float = 1.0
    logits_divisor: float = 1.0
    logits_cap: float | None = None
    source_width: int | None = None


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    if values.get("model_type") != "mistral":
        reader = open_config(values)
        return read_shape(reader, read_heads(reader))
    reader = open_config(values, max_position_embeddings=131072, num_key_value_heads=8)
    heads = replace(read_heads(reader), bias=False, out_bias=False)
    if reader.values.get("sliding_window", 4096) is not None:
        heads = replace(heads, window=reader.integer("sliding_window", 4096))
    reader.refuse_unless(layer_types=None)
    return read_shape(reader, heads)


def read_qwen2(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = open_config(values, max_position_embeddings=32768)
    reader.refuse_unless(mlp_bias=False)
    heads = replace(read_heads(reader), bias=True, out_bias=False)
    return read_shape(reader, set_windows(reader, heads))


def read_qwen3(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = open_config(values, max_position_embeddings=32768, head_dim=128)
    reader.refuse_unless(mlp_bias=False)
    return read_shape(reader, set_windows(reader, read_heads(reader)), has_head_norms=True)


def read_smollm3(values: Mapping[str, Any]) -> Config:
    """The configuration; in every fourth layer nothing rotates, and only these may have a window.

    Raises:
        CheckpointError: not one flag a layer.
    """
    reader = open_config(
        values,
        max_position_embeddings=32768,
        num_key_value_heads=4,
        rope_theta=2_000_000.0,
        tie_word_embeddings=True,
    )
    count, every = reader.layers("num_hidden_layers"), reader.integer("no_rope_layer_interval", 4)
    rotates = values.get("no_rope_layers") or [(layer + 1) % every for layer in range(count)]
    if not isinstance(rotates, list) or len(rotates) < count:
        raise CheckpointError(f"{reader.place}: no_rope_layers must have a flag for each layer")
    heads, window = read_heads(reader), None
    if reader.flag("use_sliding_window", False) and reader.find("sliding_window"):
        window = reader.integer("sliding_window")
    sliding = sliding_layers(reader, lambda layer: not rotates[layer])
    layers = [replace(heads, window=window if slides else None) for slides in sliding]
    pairs = zip(layers, rotates, strict=False)
    return read_shape(reader, [h if turns else replace(h, rotary=None) for h, turns in pairs])


def read_granite(values: Mapping[str, Any]) -> Config:
    """The configuration: Llama's with a factor at each place."""
    reader = open_config(values)
    heads = replace(read_heads(reader), scale=read_positive(reader, "attention_multiplier", 1.0))
    return read_shape(
        reader,
        heads,
        behind=partial(Scale, reader.number("residual_multiplier", 1.0)),
        embedding_scale=read_positive(reader, "embedding_multiplier", 1.0),
        logits_divisor=read_positive(reader, "logits_scaling", 1.0),
    )


def read_olmo(values: Mapping[str, Any]) -> Config:
    """The configuration: layer norms without weights; clipped queries and keys are refused."""
    reader = open_config(values)
    reader.refuse_unless(clip_qkv=None, mlp_bias=False)
    norm = partial(nn.LayerNorm, elementwise_affine=False)
    return read_shape(reader, read_heads(reader), norm=norm, norm_epsilon=1e-5)


def read_stablelm(values: Mapping[str, Any]) -> Config:
    """The configuration: layer norms, and a quarter of each head rotates."""
    names = {"layer_norm_epsilon": "layer_norm_eps"}
    reader = open_config(values, names=names, max_position_embeddings=4096, layer_norm_epsilon=1e-5)
    reader.refuse_unless(qk_layernorm=False, use_parallel_residual=False, mlp_bias=False)
    reader.refuse_unless(head_dim=None)
    bias = reader.flag("use_qkv_bias", False)
    heads = replace(read_heads(reader, share=0.25), bias=bias, out_bias=False)
    return read_shape(reader, heads, norm=nn.LayerNorm)


def read_starcoder2(values: Mapping[str, Any]) -> Config:
    """The configuration: layer norms, an MLP without a gate, and perhaps a window."""
    reader = open_config(
        values,
        names={"layer_norm_epsilon": "norm_epsilon"},
        max_position_embeddings=4096,
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
    )
    bias = reader.flag("use_bias", True)
    heads = replace(read_heads(reader), bias=bias, out_bias=bias)
    if reader.find("sliding_window") is not None:
        heads = replace(heads, window=reader.integer("sliding_window"))
    return read_shape(reader, heads, norm=nn.LayerNorm, mlp=MLP, has_mlp_bias=bias)


def read_phi3(values: Mapping[str, Any]) -> Config:
    """The configuration: perhaps a window, and a part of each head that does not rotate."""
    given = values.get("rope_scaling") or values.get("rope_parameters")
    if isinstance(given, Mapping) and given.get("rope_type", given.get("type")) in ("su", "yarn"):
        values = {**values, "rope_scaling": {**given, "rope_type": "longrope"}}  # its old names
    defaults: dict[str, Any] = {"max_position_embeddings": 4096, TRAINED: 4096}
    reader = open_config(values, layer_norm_epsilon=1e-5, **defaults)
    reader.refuse_unless(mlp_bias=False)
    heads = replace(read_heads(reader, share=1.0), bias=False, out_bias=False)
    if reader.find("sliding_window") is not None:
        heads = replace(heads, window=reader.integer("sliding_window"))
    return read_shape(reader, heads)


def open_config(
    values: Mapping[str, Any],
    place: str = "config.json",
    names: Mapping[str, str] | None = None,
    **defaults: Any,
) -> ConfigReader:
    """The reader of `config.json`.

    Args:
        names: Of fields of a family, where they are not Llama's.
        defaults: Likewise.
    """
    names = {"layer_norm_epsilon": "rms_norm_eps", **(names or {})}
    return ConfigReader(values, place, _DEFAULTS | defaults, names)


def read_heads(reader: ConfigReader, share: float | None = None) -> Heads:
    """What the attention of all layers has in common.

    Args:
        share: As of `rotary_of`.

    Raises:
        CheckpointError: query heads cannot share key heads evenly.
    """
    width, count = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    shared = reader.integer("num_key_value_heads", count)
    if count % shared:
        raise CheckpointError(
            f"{reader.place}: num_attention_heads = {count} is not a multiple of "
            f"num_key_value_heads = {shared}"
        )
    if reader.find("head_dim") is None:
        reader.heads("num_attention_heads")
    inner = reader.integer("head_dim", width // count)
    bias = reader.flag("attention_bias", False)
    return Heads(
        width,
        count,
        bias=bias,
        key_value_count=shared,
        head_width=inner,
        out_bias=bias,
        rotary=read_rotary(reader, inner, reader.integer("max_position_embeddings"), share),
    )


def read_shape(reader: ConfigReader, heads: Heads | Sequence[Heads], **form: Any) -> Config:
    """The configuration around the heads, which are of all layers or of each.

    Args:
        form: Fields of `Config`.
    """
    count = reader.layers("num_hidden_layers")
    layers = (heads,) * count if isinstance(heads, Heads) else tuple(heads)
    tables = [layer.rotary.positions for layer in layers if layer.rotary is not None]
    positions = min([reader.integer("max_position_embeddings"), *tables])
    return reader.read(Config, positions=positions, layers=layers, **form)


def read_positive(reader: ConfigReader, name: str, default: float) -> float:
    """A number above 0.

    Raises:
        CheckpointError: another number.
    """
    value = reader.number(name, default)
    if value <= 0:
        raise CheckpointError(f"{reader.place}: {name} must be positive, not {value:g}")
    return value


def set_windows(reader: ConfigReader, heads: Heads) -> tuple[Heads, ...]:
    """Qwen's heads of each layer: with `use_sliding_window`, the upper ones have a window."""
    lowest = reader.number("max_window_layers", 28)
    window = None
    if reader.flag("use_sliding_window", False) and reader.values.get("sliding_window", 4096):
        window = reader.integer("sliding_window", 4096)
    sliding = sliding_layers(reader, lambda layer: window is not None and layer >= lowest)
    return tuple(replace(heads, window=window) if slides else heads for slides in sliding)


def sliding_layers(reader: ConfigReader, is_sliding: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers attend to a window only, from `layer_types`.

    Args:
        is_sliding: Layer, from 0 → what applies where the checkpoint has no `layer_types`.

    Raises:
        CheckpointError: another kind of attention, or not one entry a layer.
    """
    count = reader.layers("num_hidden_layers")
    kinds = reader.values.get("layer_types")
    if kinds is None:
        return tuple(is_sliding(layer) for layer in range(count))
    allowed = {"sliding_attention": True, "full_attention": False}
    is_list = isinstance(kinds, list) and len(kinds) == count
    if not is_list or not all(kind in list(allowed) for kind in kinds):
        raise CheckpointError(
            f"{reader.place}: layer_types must have one of {', '.join(allowed)} for each of "
            f"{count} layers, not {kinds!r}"
        )
    return tuple(allowed[kind] for kind in kinds)


# ---------------------------------------------------------------------------------------- blocks


def make_block(config: Config, heads: Heads) -> DecoderBlock:
    """Causal self-attention, perhaps cross-attention, and MLP, behind norms."""
    norm = partial(config.norm, eps=config.norm_epsilon)
    width = config.source_width
    return DecoderBlock(
        CachedAttention(heads, norm if config.has_head_norms else None),
        config.mlp(config.width, config.mlp_width, config.activation, bias=config.has_mlp_bias),
        partial(norm, config.width),
        None if width is None else CrossAttention(heads, width),
        is_norm_first=True,
        behind=config.behind,
    )


# --------------------------------------------------------------------------------------- network


class Llama(TransformerDecoder):
    """Tokens → scores of the next token; positions are in the attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size
        self.scale, self.divisor = config.embedding_scale, config.logits_divisor
        self.logits_cap = config.logits_cap
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.blocks = nn.ModuleList(make_block(config, heads) for heads in config.layers)
        self.norm = config.norm(config.width, eps=config.norm_epsilon)
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.tokens(tokens) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        logits = super().logits(hidden) / self.divisor
        if self.logits_cap is None:
            return logits
        return self.logits_cap * (logits / self.logits_cap).tanh()  # between both caps, in order


# ----------------------------------------------------------------------------------------- names


_THEIRS, _OURS = "model.layers.*", "blocks.*"
NAMES: Names = {
    "model.embed_tokens": "tokens",
    f"{_THEIRS}.input_layernorm": f"{_OURS}.attention_norm",
    **projections(f"{_THEIRS}.self_attn", f"{_OURS}.attention", "q_proj k_proj v_proj o_proj"),
    f"{_THEIRS}.self_attn.q_norm": f"{_OURS}.attention.query_norm",
    f"{_THEIRS}.self_attn.k_norm": f"{_OURS}.attention.key_norm",
    f"{_THEIRS}.self_attn.rotary_emb.inv_freq": None,  # which old versions stored
    f"{_THEIRS}.post_attention_layernorm": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.mlp.gate_proj": f"{_OURS}.mlp.gate",
    f"{_THEIRS}.mlp.up_proj": f"{_OURS}.mlp.up",
    f"{_THEIRS}.mlp.down_proj": f"{_OURS}.mlp.down",
    "model.norm": "norm",
}
"""`transformers`' names → ours."""
_PLAIN_MLP: Names = {
    f"{_THEIRS}.mlp.c_fc": f"{_OURS}.mlp.up",
    f"{_THEIRS}.mlp.c_proj": f"{_OURS}.mlp.down",
}


def phi3_names(config: Config) -> Names:
    """Phi-3's, whose projections are stored as one."""
    heads, own = config.layers[0], f"{_OURS}.attention"
    fused = (f"{own}.query", f"{own}.key", f"{own}.value")
    shares = (heads.count, heads.groups, heads.groups)
    return NAMES | {
        f"{_THEIRS}.self_attn.qkv_proj": WeightLayout(fused, shares),
        f"{_THEIRS}.mlp.gate_up_proj": WeightLayout((f"{_OURS}.mlp.gate", f"{_OURS}.mlp.up")),
    }


# ---------------------------------------------------------------------------------- declarations

LLAMA = with_answers(language_model("llama", read_config, Llama, NAMES))
QWEN2 = with_answers(language_model("qwen2", read_qwen2, Llama, NAMES))
QWEN3 = with_answers(language_model("qwen3", read_qwen3, Llama, NAMES))
SMOLLM3 = with_answers(language_model("smollm3", read_smollm3, Llama, NAMES))
GRANITE = language_model("granite", read_granite, Llama, NAMES)
OLMO = language_model("olmo", read_olmo, Llama, NAMES)
STABLELM = language_model("stablelm", read_stablelm, Llama, NAMES)
PHI3 = language_model("phi3", read_phi3, Llama, phi3_names)
STARCODER2 = language_model("starcoder2", read_starcoder2, Llama, NAMES | _PLAIN_MLP)
