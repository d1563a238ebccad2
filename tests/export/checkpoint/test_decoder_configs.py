"""`config.json` of decoder-only models: today's and older fields, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from export.layers.attention.rotary import Rotary
from export.registry import architecture
from inference.errors import CheckpointError
from tests.export.twin import EXPORTED
from tests.export.twins import twin_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.8, 2.5],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 9.0],
}
SCALED: dict[str, dict[str, Any]] = {
    "default": {},
    "base": {"rope_theta": 500000.0},
    "Llama 3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "linear, as it was first written": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "Qwen2.5's YaRN": {"rope_theta": 1000000.0, "rope_scaling": YARN | {"type": "yarn"}},
    "YaRN of all positions": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "YaRN with its own ramp": {
        "rope_scaling": YARN
        | {"rope_type": "yarn", "beta_fast": 2.0, "beta_slow": 0.3, "truncate": False}
    },
    "YaRN with an amplitude": {
        "rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 0.7, "beta_fast": None}
    },
    "YaRN with DeepSeek's weights": {
        "rope_scaling": YARN | {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.2}
    },
    "YaRN without a ramp": {
        "rope_scaling": YARN | {"rope_type": "yarn", "beta_fast": 9.0, "beta_slow": 9.0}
    },
    "LongRoPE": {"rope_scaling": LONGROPE | {"factor": 4.0}},
    "LongRoPE with an amplitude": {
        "rope_scaling": LONGROPE | {"rope_type": "longrope", "attention_factor": 1.3}
    },
    "Phi-3's place for the trained positions": {
        "original_max_position_embeddings": 4,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0},
    },
}


def _values(name: str) -> dict[str, Any]:
    """A configuration as of a checkpoint saved with `transformers` 4: no `rope_parameters`."""
    values = {"model_type": name, **twin_of(name).configs[EXPORTED]}
    values.pop("rope_parameters", None)
    return values


def _rotary(name: str, values: dict[str, Any], layer: int = 0) -> Rotary:
    rotary = architecture(name).read_config(values).layers[layer].rotary
    assert isinstance(rotary, Rotary)
    return rotary


def _tables(cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Of `transformers`, which repeats each half: (2, positions, w / 2)."""
    width = cosine.shape[-1] // 2
    return torch.stack([cosine[0, :, :width], sine[0, :, :width]])


@pytest.mark.parametrize("case", SCALED)
def test_older_rope_fields_mean_what_transformers_reads(case: str) -> None:
    values = _values("llama") | deepcopy(SCALED[case])  # `transformers` writes into it
    ours = _rotary("llama", values)
    config = transformers.LlamaConfig(**{k: v for k, v in values.items() if k != "model_type"})
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(32)[None])
    assert ours.positions == 32
    assert torch.allclose(_tables(*theirs), torch.stack(ours.tables), atol=1e-6)


def test_longrope_is_served_up_to_the_trained_length() -> None:
    values = _values("llama") | {"max_position_embeddings": 64, "rope_scaling": deepcopy(LONGROPE)}
    values["original_max_position_embeddings"] = 16
    config = architecture("llama").read_config(values)
    assert config.limits.max_total_tokens == 16
    ours = _rotary("llama", values)
    theirs = LlamaRotaryEmbedding(
        transformers.LlamaConfig(**{k: v for k, v in values.items() if k != "model_type"})
    )
    short, long = (
        _tables(*theirs(torch.zeros(1), torch.arange(length)[None])) for length in (16, 17)
    )
    assert torch.allclose(short, torch.stack(ours.tables), atol=1e-6)
    assert not torch.allclose(long[:, :16], short, atol=1e-2)


def test_yarn_is_neither_plain_nor_linear() -> None:
    values = _values("llama") | {"rope_scaling": YARN | {"rope_type": "yarn", "beta_slow": 0.1}}
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01])
    ratios = (_rotary("llama", values).scaling(frequencies) / frequencies).tolist()
    assert ratios[0] == 1.0
    assert ratios[-1] == 0.25
    assert any(0.25 < ratio < 1 for ratio in ratios)


@pytest.mark.parametrize("case", ["Llama 3", "linear", "default"])
def test_gemma_3_rotates_by_two_bases_in_older_fields(case: str) -> None:
    values = _values("gemma3_text") | deepcopy(SCALED[case]) | {"rope_local_base_freq": 77.0}
    ours = [_rotary("gemma3_text", values, layer) for layer in range(2)]
    config = transformers.Gemma3TextConfig(**{k: v for k, v in values.items() if k != "model_type"})
    rotary = Gemma3RotaryEmbedding(config)
    for one, kind in zip(ours, values["layer_types"], strict=True):
        theirs = rotary(torch.zeros(1), torch.arange(32)[None], kind)
        assert torch.allclose(_tables(*theirs), torch.stack(one.tables), atol=1e-6), kind


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "factor is missing"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "factor must be a number"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "short_factor must be a list"),
    ("llama", {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor needs 5 numbers"),
    ("llama", {"rope_scaling": {"rope_type": "proportional"}}, "rope_type = 'proportional'"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"num_key_value_heads": 4}, "num_key_value_heads = 4"),
    ("llama", {"hidden_act": "sine"}, "'sine'"),
    ("llama", {"head_dim": 9}, "width 9"),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (
        "gemma3_text",
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": None},
        "rope_scaling needs rope_type",
    ),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("opt", {"num_attention_heads": 7}, "num_attention_heads"),
    ("gpt_neo", {"attention_types": [[["global", "sparse"], 1]]}, "attention_types"),
    ("gpt_neo", {"attention_types": [[["global"], 1]]}, "attention_types"),
    ("openai-gpt", {"afn": "tanh"}, "afn = 'tanh'"),
]


@pytest.mark.parametrize(("name", "change", "reason"), REFUSED)
def test_unsupported_fields_are_refused_by_name(
    name: str, change: dict[str, Any], reason: str
) -> None:
    values = _values("llama" if name == "mistral" else name) | {"model_type": name}
    with pytest.raises(CheckpointError, match=reason):
        architecture(name).build(architecture(name).read_config(values | change))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "opt", "gpt_neo", "openai-gpt"])
def test_prompt_limit_reserves_a_position_for_the_answer(name: str) -> None:
    limits = architecture(name).read_config(_values(name)).limits
    assert (limits.max_input_tokens, limits.max_total_tokens) == (31, 32)
