"""Tiny models of `transformers`, every parameter randomised, saved as checkpoints.

Of an architecture that `transformers` lacks the twin is our own network, and its reference a plain
reimplementation of the paper that reads the same file.

A twin with default initialisation is nearly blind (`docs/architecture.md`, fidelity): biases are
zero, norms are one. Here weights are ±0.3, norms 1 ± 0.5, biases ±0.5.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

from export.registry import architecture as declared
from tests.export import bahdanau_paper, show_attend_tell_paper

MARIAN = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 63,
    "eos_token_id": 0,
    "decoder_start_token_id": 63,
    "forced_eos_token_id": 0,
}
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
GPT2 = {
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
CLIP_TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "bos_token_id": 62,
    "eos_token_id": 63,
    "pad_token_id": 1,
}
BAHDANAU = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "attention_size": 16,
    "readout_size": 12,
    "max_positions": 32,
    "decoder_start_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
SHOW_ATTEND_TELL = {
    "image_size": 16,
    "channels": [6, 12],
    "strides": [2, 2],
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "attention_size": 16,
    "max_tokens": 32,
    "decoder_start_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 1,
}

CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "marian": {
        "plain": MARIAN,
        "odd-heads": MARIAN
        | {
            "d_model": 30,
            "encoder_attention_heads": 5,
            "decoder_attention_heads": 3,
            "encoder_layers": 1,
        },
        "unscaled-relu": MARIAN
        | {"scale_embedding": False, "activation_function": "relu", "decoder_layers": 3},
        "separate-tables": MARIAN
        | {
            "decoder_vocab_size": 50,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "pad_token_id": 49,
            "decoder_start_token_id": 49,
            "activation_function": "gelu",
        },
        "tied-target": MARIAN
        | {
            "decoder_vocab_size": 50,
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": True,
            "pad_token_id": 49,
            "decoder_start_token_id": 49,
            "d_model": 36,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "activation_function": "gelu_new",
        },
    },
    "vision-encoder-decoder": {
        "plain": {"encoder": VISION, "decoder": GPT2 | {"n_embd": 24}},
        "projected": {"encoder": VISION, "decoder": GPT2 | {"n_layer": 3, "n_inner": 44}},
        "odd-heads": {
            "encoder": VISION
            | {"num_attention_heads": 3, "qkv_bias": False, "layer_norm_eps": 1e-3},
            "decoder": GPT2 | {"n_embd": 30, "n_head": 3, "activation_function": "relu"},
        },
        "strict": {  # values that differ from what a careless port would assume
            "encoder": VISION | {"layer_norm_eps": 1e-3},
            "decoder": GPT2 | {"layer_norm_epsilon": 1e-3},
        },
        "not-square": {
            "encoder": VISION
            | {"image_size": [32, 48], "patch_size": [8, 16], "hidden_act": "quick_gelu"},
            "decoder": GPT2 | {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
        },
        "untied": {
            "encoder": VISION | {"num_hidden_layers": 1, "intermediate_size": 20},
            "decoder": GPT2
            | {
                "tie_word_embeddings": False,
                "scale_attn_by_inverse_layer_idx": True,
                "reorder_and_upcast_attn": True,
                "n_embd": 36,
                "n_head": 2,
            },
        },
    },
    "clip": {
        "plain": {"text_config": CLIP_TEXT, "vision_config": VISION, "projection_dim": 20},
        "legacy-end": {
            "text_config": CLIP_TEXT
            | {"eos_token_id": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            "vision_config": VISION | {"hidden_act": "gelu", "num_attention_heads": 3},
            "projection_dim": 24,
        },
        "odd-heads": {
            "text_config": CLIP_TEXT | {"hidden_size": 30, "num_attention_heads": 3},
            "vision_config": VISION
            | {"hidden_size": 36, "num_attention_heads": 2, "patch_size": 12},
            "projection_dim": 7,
        },
    },
    "gpt2": {
        "plain": GPT2,
        "odd-heads": GPT2 | {"n_embd": 30, "n_head": 3, "n_inner": 44, "layer_norm_epsilon": 1e-3},
        "untied": GPT2
        | {
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
            "n_layer": 3,
            "activation_function": "relu",
        },
        "unscaled": GPT2 | {"scale_attn_weights": False, "activation_function": "gelu"},
    },
    "show-attend-tell": {
        "plain": SHOW_ATTEND_TELL,
        "odd-sizes": SHOW_ATTEND_TELL
        | {
            "image_size": [18, 26],  # a grid of 5 x 7
            "channels": [4, 6, 10],
            "strides": [2, 1, 2],
            "embedding_size": 9,
            "hidden_size": 13,
            "attention_size": 7,
        },
    },
    "bahdanau": {
        "plain": BAHDANAU,
        "odd-sizes": BAHDANAU
        | {"embedding_size": 9, "hidden_size": 13, "attention_size": 7, "readout_size": 5},
    },
}
PAPERS: dict[str, Callable[[Any, Any], Any]] = {
    "bahdanau": lambda weights, config: bahdanau_paper.Paper(weights),
    "show-attend-tell": show_attend_tell_paper.Paper,
}
"""Architectures that `transformers` lacks → the paper, given a checkpoint's tensors and config."""

_NORMS = nn.LayerNorm | nn.BatchNorm2d  # the latter's mean and variance too


def make_twin(architecture: str, config: str, folder: Path) -> Any:
    """A randomised model of `transformers`, or the paper's; its checkpoint is saved to `folder`."""
    if architecture in PAPERS:
        return _own_twin(architecture, CONFIGS[architecture][config], folder)
    model = _build(architecture, CONFIGS[architecture][config]).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draws every parameter and saved buffer anew."""
    generator = torch.Generator().manual_seed(seed)
    norms = {name for name, module in model.named_modules() if isinstance(module, _NORMS)}
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or "embed_positions" in name:
                continue
            module, _, leaf = name.rpartition(".")
            noise = torch.rand(tensor.shape, generator=generator) * 2 - 1
            if "bias" in leaf:
                tensor.copy_(0.5 * noise)
            elif module in norms:
                tensor.copy_(1 + 0.5 * noise)
            else:
                tensor.copy_(0.3 * noise)


def _own_twin(architecture: str, values: dict[str, Any], folder: Path) -> Any:
    ours = declared(architecture)
    network = ours.build(ours.read_config(values))
    randomise(network)
    save_file(network.state_dict(), folder / "model.safetensors")
    config = {"model_type": architecture, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return PAPERS[architecture](load_file(folder / "model.safetensors"), config)


def _build(architecture: str, values: dict[str, Any]) -> nn.Module:
    if architecture == "marian":
        return transformers.MarianMTModel(transformers.MarianConfig(**values))
    if architecture == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**values))
    if architecture == "clip":
        return transformers.CLIPModel(transformers.CLIPConfig(**values))
    if architecture == "vision-encoder-decoder":
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.ViTConfig(**values["encoder"]),
            transformers.GPT2Config(**values["decoder"]),
            decoder_start_token_id=1,
            pad_token_id=0,
            eos_token_id=1,
        )
        return transformers.VisionEncoderDecoderModel(config)
    raise KeyError(f"a twin of {architecture} has to be added to tests/export/twins.py")
