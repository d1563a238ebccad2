"""ONNX Runtime's attention operators (`docs/ContribOperators.md`), for graphs only.

Legend: B batch, R rows, T queries, S keys, P cache positions, H query heads, G key and value heads,
K width of a head, K' as the cache holds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.onnx import ops

from export.layers.attention.heads import Heads, KeyValue, Rows

Attributes = dict[
    str, int | float | str | bool | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
]
MASKED_SCORE = -1e30  # the operator's own default of -1e4 can be reached by a trained model


def multi_head_attention(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """`com.microsoft.MultiHeadAttention`: (B, T, H·K), or as wide as the values.

    Args:
        query: (B, T, H·K).
        key: (B, S, H·K) or, from a cache, (B, H, S, K); `value` too, whose width may be another.
        lengths: (B,) int32, keys that are no padding.
        bias: (1 or B, 1 or H, T, S).
    """
    inputs = [query, key, value, None, lengths, bias]
    while inputs[-1] is None:
        inputs.pop()
    attributes: Attributes = {
        "num_heads": heads.count,
        "scale": heads.score_scale,
        "mask_filter_value": MASKED_SCORE,
        "unidirectional": int(is_causal),
    }
    width = value.shape[-1] * (heads.count if value.ndim == 4 else 1)
    return ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        attributes,
        dtype=query.dtype,
        shape=(*query.shape[:-1], width),
        version=1,
    )


def group_query_attention(
    heads: Heads, packed: Tensor, past: KeyValue, rows: Rows, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`com.microsoft.GroupQueryAttention`: the mixed values (R, T, H·K') and both caches.

    The operator counts a row's length without its last token (`seqlens_k`).

    Args:
        packed: (R, T, (H + 2·G)·K'): queries, keys and values.
        past: (R, G, P, K') each.
        bias: (R, H, T, P); what lies behind the longest row is cut off, as the operator expects it.
    """
    tables: tuple[Tensor | None, Tensor | None] = (None, None)
    if heads.rotary is not None and rotates_fused(heads):
        tables = heads.rotary.tables
    inputs = [packed, None, None, *past, rows.lengths - 1, rows.total, *tables]
    inputs += [] if bias is None else [None, _cut(bias, rows.total)]
    while inputs[-1] is None:
        inputs.pop()
    attributes: Attributes = {
        "num_heads": heads.count,
        "kv_num_heads": heads.groups,
        "scale": heads.score_scale,
    }
    if heads.soft_cap is not None:
        attributes["softcap"] = heads.soft_cap
    if heads.window is not None:
        attributes["local_window_size"] = heads.window
    if heads.rotary is not None and rotates_fused(heads):
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(heads.rotary.is_interleaved)}
    mixed = (*packed.shape[:2], heads.count * heads.cache_width)
    result = ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        inputs,
        attributes,
        dtypes=[packed.dtype] * 3,
        shapes=[mixed, past[0].shape, past[1].shape],
        version=1,
    )
    return result[0], result[1], result[2]


def rotates_fused(heads: Heads) -> bool:
    """Whether the operator rotates heads of this shape itself.

    It takes multiples of 16 only, and rotates by a token's place in its row.
    """
    rotary = heads.rotary
    if rotary is None or rotary.sections:
        return False
    return not (rotary.width % 16 or heads.cache_width % 16)


def _cut(bias: Tensor, total: Tensor) -> Tensor:
    """(R, H, T, P) → (R, H, T, total). A plain `Slice`: its size is known only when it runs."""
    start, axis = total.new_zeros(1), total.new_full((1,), 3)
    return ops.symbolic(
        "::Slice", [bias, start, total.reshape(1), axis], dtype=bias.dtype, shape=bias.shape
    )
