"""Mistakes that a port of a decoder-only model can make; see `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from export.layers.attention import attention
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import unscaled
from export.layers.blocks import RMSNorm
from tests.export.faults.faults import Fault, change, replaced, swap_modules


def _heads(make: Callable[[Heads], Heads]) -> Fault:
    """Another shape of the attention of every layer."""

    def action(network: Any) -> None:
        for block in network.decoder.blocks:
            block.attention.heads = make(block.attention.heads)

    return change(action)


def _rotary(**fields: Any) -> Fault:
    def make(heads: Heads) -> Heads:
        assert heads.rotary is not None
        return replace(heads, rotary=replace(heads.rotary, **fields))

    return _heads(make)


def _swapped_heads(network: Any) -> None:
    first, second = (block.attention for block in network.decoder.blocks)
    first.heads, second.heads = second.heads, first.heads


def _swapped_rotary(network: Any) -> None:
    first, second = (block.attention for block in network.decoder.blocks)
    bases = first.heads.rotary, second.heads.rotary
    first.heads = replace(first.heads, rotary=bases[1])
    second.heads = replace(second.heads, rotary=bases[0])


def _in_turn(x: Tensor, heads: Heads) -> Tensor:
    """Query heads take key heads 0 1 0 1 in place of 0 0 1 1."""
    return x.repeat(1, heads.count // heads.groups, 1, 1)


def _centred(norm: RMSNorm, x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:], norm.weight + norm.offset, eps=norm.eps)


def _blocks(action: Callable[[Any], object]) -> Fault:
    def everywhere(network: Any) -> None:
        for block in network.decoder.blocks:
            action(block)

    return change(everywhere)


def _norms(**fields: Any) -> Fault:
    def action(network: Any) -> None:
        for module in network.modules():
            if isinstance(module, RMSNorm):
                for name, value in fields.items():
                    setattr(module, name, value)

    return change(action)


LLAMA: dict[str, Fault] = {
    "neighbours rotate in place of halves": _rotary(is_interleaved=True),
    "another rotary base": _rotary(base=10000.0),
    "long wavelengths are not scaled": _rotary(scaling=unscaled),
    "key heads repeat in turn": replaced(attention, "repeat_groups", _in_turn),
    "scores are scaled by D / H": _heads(
        lambda heads: replace(heads, scale=(heads.model_width / heads.count) ** -0.5)
    ),
    "gate and up are swapped": _blocks(lambda block: swap_modules(block.mlp, "gate", "up")),
    "the norm subtracts the mean": replaced(RMSNorm, "forward", _centred),
}
QWEN2: dict[str, Fault] = {
    "the window is one longer": _heads(
        lambda heads: replace(heads, window=heads.window and heads.window + 1)
    ),
    "the lower layer has the window": change(_swapped_heads),
    "a value's bias is dropped": _blocks(lambda block: block.attention.value.bias.zero_()),
}
QWEN3: dict[str, Fault] = {
    "keys are not normalised": _blocks(
        lambda block: setattr(block.attention, "key_norm", nn.Identity())
    ),
    "norms of queries and keys are swapped": _blocks(
        lambda block: swap_modules(block.attention, "query_norm", "key_norm")
    ),
}
GEMMA2: dict[str, Fault] = {
    "norms do not add one": _norms(offset=0.0),
    "scores are not capped": _heads(lambda heads: replace(heads, soft_cap=None)),
    "logits are not capped": change(lambda net: setattr(net.decoder, "logits_cap", None)),
    "embeddings are not scaled": change(lambda net: setattr(net.decoder, "scale", 1.0)),
    "the other layer has the window": change(_swapped_heads),
    "scores are scaled by the head's width": _heads(lambda heads: replace(heads, scale=None)),
    "a norm behind a sub-layer is missing": _blocks(
        lambda block: setattr(block, "attention_out_norm", nn.Identity())
    ),
}
GEMMA3: dict[str, Fault] = {
    "the two rotary bases are swapped": change(_swapped_rotary),
    "queries are not normalised": _blocks(
        lambda block: setattr(block.attention, "query_norm", nn.Identity())
    ),
}
SMOLLM3: dict[str, Fault] = {
    "the other layer does not rotate": change(_swapped_heads),
}
GRANITE: dict[str, Fault] = {
    "embeddings are not scaled": GEMMA2["embeddings are not scaled"],
    "logits are not divided": change(lambda net: setattr(net.decoder, "divisor", 1.0)),
    "scores are scaled by the head's width": GEMMA2["scores are scaled by the head's width"],
    "the MLP's output is not scaled": _blocks(
        lambda block: setattr(block, "mlp_out_norm", nn.Identity())
    ),
}
STABLELM: dict[str, Fault] = {
    "all of a head rotates": _rotary(width=12),
    "a norm lacks its bias": _blocks(lambda block: block.mlp_norm.bias.zero_()),
}
OLMO: dict[str, Fault] = {
    "the norm does not subtract the mean": _blocks(
        lambda block: setattr(block, "attention_norm", RMSNorm(30, 1e-5))
    ),
}
PHI3: dict[str, Fault] = {
    "gate and up are swapped": LLAMA["gate and up are swapped"],
    "key heads repeat in turn": LLAMA["key heads repeat in turn"],
}
STARCODER2: dict[str, Fault] = {
    "no layer has a window": _heads(lambda heads: replace(heads, window=None)),
    "a projection's bias is dropped": _blocks(lambda block: block.mlp.down.bias.zero_()),
}
OPT: dict[str, Fault] = {
    "positions start at the first row": change(
        lambda net: net.decoder.positions.weight.copy_(net.decoder.positions.weight.roll(2, 0))
    ),
    "norms are in front": _blocks(lambda block: setattr(block, "is_norm_first", True)),
    "narrow embeddings are padded": change(
        lambda net: net.decoder.widen.weight.copy_(torch.eye(*net.decoder.widen.weight.shape))
    ),
}
GPT_NEO: dict[str, Fault] = {
    "scores are scaled": _heads(lambda heads: replace(heads, scale=None)),
    "the other layer is local": change(_swapped_heads),
}
GPT1: dict[str, Fault] = {
    "norms are in front": OPT["norms are in front"],
    "erf for tanh in GELU": _blocks(
        lambda block: setattr(block.mlp, "activation", nn.functional.gelu)
    ),
}
DECODER_FAULTS: dict[str, dict[str, Fault]] = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "olmo": OLMO,
    "stablelm": STABLELM,
    "phi3": PHI3,
    "starcoder2": STARCODER2,
    "opt": OPT,
    "gpt_neo": GPT_NEO,
    "openai-gpt": GPT1,
}
