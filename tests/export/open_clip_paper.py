"""CLIP (Radford et al. 2021, arXiv 2103.00020) written out in PyTorch's own layers.

Its parameters have the names of the published code, which open_clip's files keep. Written from the
paper's §2.4 and §2.5 and those names, without our layers; it is called as a model of `transformers`
is, because it is the reference of a twin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

Values = Mapping[str, Any]


class QuickGELU(nn.Module):
    """x σ(1.702 x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x / (1 + torch.exp(-1.702 * x))


class Block(nn.Module):
    """One layer of a Transformer, norms first."""

    def __init__(self, width: int, heads: int, values: Values, activation: type[nn.Module]) -> None:
        super().__init__()
        eps = (values.get("norm_kwargs") or {}).get("eps", 1e-5)
        inner = int(width * values.get("mlp_ratio", 4.0))
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, inner), "c_proj": nn.Linear(inner, width)}
        )
        self.activation = activation()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        read = self.ln_1(x)
        x = x + self.attn(read, read, read, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp["c_proj"](self.activation(self.mlp["c_fc"](self.ln_2(x))))


class Transformer(nn.Module):
    """Blocks one behind another."""

    def __init__(self, width: int, heads: int, values: Values, activation: type[nn.Module]) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(
            Block(width, heads, values, activation) for _ in range(values["layers"])
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        for block in self.resblocks:
            x = block(x, mask)
        return x


class ViT(nn.Module):
    """Patches and a class token, normalised in front of the blocks."""

    def __init__(self, values: Values, embedding: int, activation: type[nn.Module]) -> None:
        super().__init__()
        width = values["width"]
        height, breadth = _pair(values["image_size"])
        patch = _pair(values["patch_size"])
        eps = (values.get("norm_kwargs") or {}).get("eps", 1e-5)
        count = (height // patch[0]) * (breadth // patch[1])
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(count + 1, width))
        self.ln_pre = nn.LayerNorm(width, eps=eps)
        self.transformer = Transformer(width, width // values["head_width"], values, activation)
        self.ln_post = nn.LayerNorm(width, eps=eps)
        self.proj = nn.Parameter(torch.zeros(width, embedding))

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, E)."""
        patches = self.conv1(image).flatten(2).transpose(1, 2)
        token = self.class_embedding.repeat(len(image), 1, 1)
        x = torch.cat([token, patches], dim=1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x))[:, 0]) @ self.proj


class OpenClip(nn.Module):
    """Both towers.

    Args:
        values: `open_clip_config.json`.
    """

    config_class = dict

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values
        model = values["model_cfg"]
        activation = QuickGELU if model.get("quick_gelu") else nn.GELU
        text, width = model["text_cfg"], model["text_cfg"]["width"]
        eps = (text.get("norm_kwargs") or {}).get("eps", 1e-5)
        self.context = text["context_length"]
        self.visual = ViT(model["vision_cfg"], model["embed_dim"], activation)
        self.transformer = Transformer(width, text["heads"], text, activation)
        self.token_embedding = nn.Embedding(text["vocab_size"], width)
        self.positional_embedding = nn.Parameter(torch.zeros(self.context, width))
        self.ln_final = nn.LayerNorm(width, eps=eps)
        self.text_projection = nn.Parameter(torch.zeros(width, model["embed_dim"]))
        self.logit_scale = nn.Parameter(torch.zeros(()))
        hidden = torch.full((self.context, self.context), float("-inf")).triu(1)
        self.register_buffer("attn_mask", hidden, persistent=False)

    def forward(
        self, pixel_values: Tensor | None = None, input_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Unit vectors of what is given: (B, 3, height, width), and tokens (B, T)."""
        outputs = {}
        if pixel_values is not None:
            outputs["image_embeds"] = functional.normalize(self.visual(pixel_values), dim=-1)
        if input_ids is not None:
            outputs["text_embeds"] = functional.normalize(self.encode(input_ids), dim=-1)
        return outputs

    def encode(self, tokens: Tensor) -> Tensor:
        """(B, T), padded with zeros to the context → (B, E)."""
        tokens = functional.pad(tokens, (0, self.context - tokens.shape[1]))
        x = self.token_embedding(tokens) + self.positional_embedding
        x = self.ln_final(self.transformer(x, self.attn_mask))
        return x[torch.arange(len(x)), tokens.argmax(dim=1)] @ self.text_projection

    def save_pretrained(self, folder: Path) -> None:
        """A folder as open_clip writes it."""
        save_file(self.state_dict(), folder / "open_clip_model.safetensors")
        (folder / "open_clip_config.json").write_text(json.dumps(self.values), encoding="utf-8")


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
