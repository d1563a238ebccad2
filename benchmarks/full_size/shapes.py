"""Shapes of published checkpoints, by `transformers` classes and fields of `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """One published checkpoint's shape.

    Attributes:
        model: Class of `transformers` that makes the weights.
        fields: Of its `config.json`, where they differ from the class's defaults.
        files: What the folder holds beside weights: `tokenizer`, `languages`, `qwen`, `marian`,
            `image_token`, `image`, `tiles`, `sentences`, `chat`.
        dtype: Of the saved weights, as the published file's.
    """

    model: str
    fields: Mapping[str, Any]
    files: tuple[str, ...] = ("tokenizer",)
    dtype: str = "float32"


_GPT_LIKE = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPES: dict[str, Shape] = {
    "opus-mt-74m": Shape(
        "MarianMTModel",
        {
            "vocab_size": 58_101,
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "activation_function": "swish",
            "max_position_embeddings": 512,
            "scale_embedding": True,
            "eos_token_id": 0,
            "pad_token_id": 58_100,
            "decoder_start_token_id": 58_100,
            "forced_eos_token_id": 0,
        },
        ("marian",),
        "float16",
    ),
    "vit-base-patch16": Shape(
        "ViTForImageClassification", {"num_labels": 1000}, ("image",)
    ),
    "bge-base": Shape("BertModel", {"vocab_size": 30_522}, ("tokenizer", "sentences")),
    "bert-base": Shape("BertForMaskedLM", {"vocab_size": 30_522}),
    "gpt2-124m": Shape("GPT2LMHeadModel", {"bos_token_id": 2, "eos_token_id": 2}),
    "smollm2-135m": Shape(
        "LlamaForCausalLM",
        {
            "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        dtype="bfloat16",
    ),
    "clip-vit-base-patch32": Shape("CLIPModel", {"projection_dim": 512}, ("tokenizer", "image")),
    "t5-base": Shape(
        "T5ForConditionalGeneration",
        {
            "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "vit-gpt2-239m": Shape("VisionEncoderDecoderModel", {}, ("tokenizer", "image")),
    "smolvlm-256m": Shape(
        "Idefics3ForConditionalGeneration",
        {
            "image_token_id": 49_279,
            "scale_factor": 4,
            "text_config": {
                "model_type": "llama",
                "vocab_size": 49_280,
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "head_dim": 64,
                "max_position_embeddings": 8192,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": {
                "hidden_size": 768,
                "image_size": 512,
                "patch_size": 16,
                "num_attention_heads": 12,
            },
        },
        ("tiles",),
        "bfloat16",
    ),
    "qwen2.5-0.5b": Shape(
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "bos_token_id": 151_643, "eos_token_id": 151_645, "pad_token_id": 151_643,
        },
        files=("qwen", "chat"),
        dtype="bfloat16",
    ),
    "llama-3.2-1b": Shape(
        "LlamaForCausalLM",
        {
            "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        dtype="bfloat16",
    ),
    "nllb-600m": Shape(
        "M2M100ForConditionalGeneration",
        {
            "vocab_size": 256_206, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
            "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
            "decoder_attention_heads": 16, "max_position_embeddings": 1024,
            "scale_embedding": True, "decoder_start_token_id": 2, "pad_token_id": 0,
            "bos_token_id": 1,
        },
        ("languages",),
    ),
    "paligemma-3b": Shape(
        "PaliGemmaForConditionalGeneration",
        {
            "vocab_size": 257_216,
            "image_token_id": 257_215,
            "projection_dim": 2048,
            "text_config": {
                "model_type": "gemma", "vocab_size": 257_216, "hidden_size": 2048,
                "intermediate_size": 16_384, "num_hidden_layers": 18, "num_attention_heads": 8,
                "num_key_value_heads": 1, "head_dim": 256, "bos_token_id": 1, "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152,
                "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
                "image_size": 224, "patch_size": 14, "projection_dim": 2048,
                "vision_use_head": False,
            },
        },
        ("image_token", "image"),
        "bfloat16",
    ),
}  # fmt: skip
