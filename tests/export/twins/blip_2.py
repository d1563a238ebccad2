"""Twins of `export.models.vision_language.blip_2`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import gpt, llama, t5

_TINY_IMAGE = TINY_IMAGE | {"image_size": 16, "layer_norm_eps": 1e-3}
_TINY_QFORMER = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 28,
    "layer_norm_eps": 1e-3,
    "vocab_size": 64,
}
_TINY_TEXT = {
    **gpt.OPT.configs["plain"],
    "model_type": "opt",
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "qformer_config": _TINY_QFORMER,
    "num_query_tokens": 4,
    "image_token_index": 61,
}
BLIP_2 = tiny_twin(
    "transformers:Blip2ForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "word_embed_proj_dim": 30, "num_attention_heads": 3},
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "qformer_config": _TINY_QFORMER | {"hidden_size": 22},
        },
        "every block reads the image": {
            "qformer_config": _TINY_QFORMER
            | {"cross_attention_frequency": 1, "hidden_act": "relu", "num_hidden_layers": 2},
            "vision_config": _TINY_IMAGE | {"hidden_act": "gelu_new", "image_size": 32},
            "num_query_tokens": 2,
        },
        "flan-t5": {
            "text_config": {**t5.TWIN.configs["odd"], "model_type": "t5"},
            "num_query_tokens": 3,
        },
        "norms behind": {
            "text_config": _TINY_TEXT | {"do_layer_norm_before": False},
            "qformer_config": _TINY_QFORMER | {"num_attention_heads": 5},
        },
    },
)


_PLAIN, _ODD = BLIP_2.configs["plain"], BLIP_2.configs["odd"]
INSTRUCTBLIP = tiny_twin(
    "transformers:InstructBlipForConditionalGeneration",
    _PLAIN,
    {
        "odd": {
            **_ODD,
            "text_config": {
                **llama.TINY,
                "model_type": "llama",
                "hidden_size": 30,
                "num_attention_heads": 6,
                "head_dim": 10,
                "max_position_embeddings": 64,
                "pad_token_id": 0,
            },
        },
        "every block reads the image": BLIP_2.configs["every block reads the image"],
        "flan-t5": BLIP_2.configs["flan-t5"],
    },
)
