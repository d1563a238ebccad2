"""Checkpoints of Qwen2's shape as GGUF files, which llama.cpp and OpenVINO GenAI read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Parts of a layer, Hugging Face's name → GGUF's."""
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
NORMAL, CONTROL, UNUSED = 1, 3, 5
"""Types of tokens."""


def gguf_file(folder: Path, kind: str) -> Path:
    """A checkpoint's file, made once beside the checkpoint.

    Args:
        folder: Of Qwen2, its tables tied.
        kind: `F16`, or one that llama.cpp's own program makes of it: `Q8_0`, `Q4_K_M`.
    """
    file = folder.with_name(f"{folder.name}-{kind}.gguf")
    if not file.is_file():
        partial = file.with_suffix(".partial")
        if kind == "F16":
            _write(folder, partial)
        else:
            _quantize(gguf_file(folder, "F16"), partial, kind)
        partial.replace(file)
    return file


def _quantize(source: Path, target: Path, kind: str) -> None:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    parameters.nthread = 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), parameters):
        raise RuntimeError(f"llama.cpp cannot make {kind} of {source}")


def _write(folder: Path, target: Path) -> None:
    import gguf
    import torch
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_tokens(writer, folder, config)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            value = weights.get_tensor(name).to(torch.float32).numpy()
            kind = np.float16 if value.ndim == 2 else np.float32
            writer.add_tensor(renamed(name), value.astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def renamed(name: str) -> str:
    """A weight's name in GGUF."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _add_tokens(writer: Any, folder: Path, config: dict[str, int]) -> None:
    """Byte-level BPE; rows of the table without a token are named and unused."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    known = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    special = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    size = config["vocab_size"]
    names = known | special
    types = [
        CONTROL if number in special else NORMAL if number in known else UNUSED
        for number in range(size)
    ]
    pairs = tokenizer["model"]["merges"]
    merges = [each if isinstance(each, str) else " ".join(each) for each in pairs]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([names.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
