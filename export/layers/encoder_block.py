"""The pre-norm Transformer block of ViT (arXiv 2010.11929) and CLIP (arXiv 2103.00020)."""

from __future__ import annotations

from torch import Tensor, nn

from export.layers.attention import Heads, SelfAttention
from export.layers.mlp import MLP


class EncoderBlock(nn.Module):
    """Norm, self-attention, residual; norm, MLP, residual."""

    def __init__(
        self,
        heads: Heads,
        mlp_width: int,
        activation: str,
        norm_epsilon: float,
        *,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(heads.model_width, eps=norm_epsilon)
        self.attention = SelfAttention(heads, is_causal=is_causal)
        self.mlp_norm = nn.LayerNorm(heads.model_width, eps=norm_epsilon)
        self.mlp = MLP(heads.model_width, mlp_width, activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))
