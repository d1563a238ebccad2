"""Twins of `export.models.encoder_decoders.t5`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

TINY = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,  # all kinds of buckets within a few tokens
    "feed_forward_proj": "relu",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_ODD = {
    "d_model": 18,
    "d_kv": 7,
    "num_heads": 5,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-3,
}
_PREFIX = {"prefix": "translate English to German: "}
TWIN = tiny_twin(
    "transformers:T5ForConditionalGeneration",
    TINY,
    {
        "odd": _ODD
        | {
            "tie_word_embeddings": False,
            "task_specific_params": {"translation_en_to_de": _PREFIX},
        },
        "scaled-gated": {"feed_forward_proj": "gated-silu", "d_kv": 12},
        "published-buckets": {
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "num_decoder_layers": 1,
            "layer_norm_epsilon": 1e-5,
        },
        "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "num_heads": 6},
        "answers": _ODD | {"decoder_start_token_id": 5},
        "answers of mt5": {"model_type": "mt5", "num_heads": 6, "tie_word_embeddings": False},
    },
    references={"mt5": "transformers:MT5ForConditionalGeneration"},
    heads={
        "answers": "transformers:T5ForQuestionAnswering",
        "answers of mt5": "transformers:MT5ForQuestionAnswering",
    },
    untied={"odd": ("lm_head.weight",), "mt5": ("lm_head.weight",)},
)
UMT5 = tiny_twin(
    "transformers:UMT5ForConditionalGeneration",
    TINY,
    {
        "odd": _ODD | {"num_layers": 2, "num_decoder_layers": 2},
        "relu": {"feed_forward_proj": "relu", "num_heads": 6},
        "answers": _ODD,
    },
    heads={"answers": "transformers:UMT5ForQuestionAnswering"},
    untied={"odd": ("lm_head.weight",)},
)
