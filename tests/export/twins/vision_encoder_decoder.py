"""Twins of `export.models.captioners.vision_encoder_decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.export.twin import ODD_TEXT, TINY_GPT, TINY_IMAGE, TINY_TEXT, Twin
from tests.export.twins import swin

_HAS_CROSS = {"is_decoder": True, "add_cross_attention": True}
_TINY_VIT = TINY_IMAGE | {"model_type": "vit"}
_TINY_SWIN = swin.TINY | {"model_type": "swin", "depths": [2, 1]}
_TINY_BERT = {
    **TINY_TEXT,
    **ODD_TEXT,
    **_HAS_CROSS,
    "model_type": "bert",
    "max_position_embeddings": 32,
    "intermediate_size": 44,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_TINY_TROCR = {
    "model_type": "trocr",
    "vocab_size": 64,
    "d_model": 30,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 32,
    "pad_token_id": 3,  # in no test's hypothesis: `transformers` counts positions without it
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_TINY_MBART = _HAS_CROSS | {
    "model_type": "mbart",
    "vocab_size": 64,
    "d_model": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 32,
    "scale_embedding": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "forced_eos_token_id": 1,
}
_TINY_GPT2 = TINY_GPT | _HAS_CROSS | {"model_type": "gpt2"}


def _tiny(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Both halves; a decoder of another kind, and a Swin, are given whole."""
    base = {} if "model_type" in decoder else _TINY_GPT2
    image = {} if "depths" in encoder else _TINY_VIT
    halves = {"encoder": {**image, **encoder}, "decoder": {**base, **decoder}}
    return halves | {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 1}


TWIN = Twin(
    reference="transformers:VisionEncoderDecoderModel",
    configs={
        "plain": _tiny({}, {"n_embd": 24}),
        "projected": _tiny({}, {"n_layer": 3, "n_inner": 44, "activation_function": "relu"}),
        "odd": _tiny(  # epsilons that differ from what a careless port would assume
            {"num_attention_heads": 3, "qkv_bias": False, "layer_norm_eps": 1e-3},
            {"n_embd": 30, "n_head": 3, "layer_norm_epsilon": 1e-3},
        ),
        "not-square": _tiny(
            {"image_size": [32, 48], "patch_size": [8, 16], "hidden_act": "quick_gelu"},
            {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
        ),
        "untied": _tiny(
            {"num_hidden_layers": 1, "intermediate_size": 20},
            {
                "tie_word_embeddings": False,
                "scale_attn_by_inverse_layer_idx": True,
                "reorder_and_upcast_attn": True,
                "n_embd": 36,
                "n_head": 2,
            },
        ),
        "bert": _tiny({"num_hidden_layers": 1}, _TINY_BERT),
        "bert-untied": _tiny(
            {"num_hidden_layers": 1},
            _TINY_BERT | {"tie_word_embeddings": False, "hidden_act": "relu", "hidden_size": 24},
        ),
        "roberta": _tiny(
            {"num_hidden_layers": 1},
            _TINY_BERT
            | {"model_type": "roberta", "pad_token_id": 3, "type_vocab_size": 1}
            | {"hidden_act": "relu"},
        ),
        "trocr": _tiny(
            {"num_hidden_layers": 1, "qkv_bias": False},
            _TINY_TROCR | {"cross_attention_hidden_size": 24},
        ),
        "deit-trocr": _tiny({"model_type": "deit", "num_hidden_layers": 1}, _TINY_TROCR),
        "swin-bert": _tiny(_TINY_SWIN, _TINY_BERT),
        "donut": _tiny(  # windows that are padded, and vectors of the decoder's own width
            _TINY_SWIN | {"model_type": "donut-swin", "image_size": [32, 48]}, _TINY_MBART
        ),
        "donut-untied": _tiny(
            _TINY_SWIN | {"model_type": "donut-swin", "depths": [1, 2]},
            _TINY_MBART
            | {"d_model": 30, "tie_word_embeddings": False, "scale_embedding": False}
            | {"decoder_layers": 1, "activation_function": "relu"},
        ),
        "trocr-sinusoidal": _tiny(
            {"num_hidden_layers": 1},
            _TINY_TROCR
            | {"use_learned_position_embeddings": False, "layernorm_embedding": False}
            | {"scale_embedding": True, "activation_function": "relu"},
        ),
    },
)
