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


class Bottleneck(nn.Module):
    """Figure 5 of He et al. 2015, strides as average pools in front of the third convolution."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.pool = nn.AvgPool2d(stride)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or channels != 4 * planes:
            convolution = nn.Conv2d(channels, 4 * planes, 1, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * planes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) → (B, 4 planes, h / stride, w / stride)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(self.pool(y)))
        return functional.relu(y + (self.downsample(self.pool(x)) if self.downsample else x))


class AttentionPool(nn.Module):
    """Attention written out head by head: the mean of the cells queries mean and cells."""

    def __init__(self, cells: int, width: int, heads: int, embedding: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.zeros(cells + 1, width))
        self.k_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, embedding)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) → (B, E)."""
        cells = x.permute(0, 2, 3, 1).reshape(len(x), -1, x.shape[1])
        cells = torch.cat([cells.mean(1)[:, None], cells], dim=1) + self.positional_embedding
        mixed = []
        for query, key, value in zip(
            self.q_proj(cells[:, 0]).chunk(self.heads, dim=-1),
            self.k_proj(cells).chunk(self.heads, dim=-1),
            self.v_proj(cells).chunk(self.heads, dim=-1),
            strict=True,
        ):
            scores = torch.einsum("bd,bnd->bn", query, key) / query.shape[-1] ** 0.5
            mixed.append(torch.einsum("bn,bnd->bd", scores.softmax(-1), value))
        return self.c_proj(torch.cat(mixed, dim=-1))


class ResNet(nn.Module):
    """Three convolutions and an average pool, four stages, attention as pooling."""

    def __init__(self, values: Values, embedding: int) -> None:
        super().__init__()
        width, channels = values["width"], values["width"]
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        for number, depth in enumerate(values["layers"]):
            planes, blocks = width * 2**number, []
            for place in range(depth):
                blocks.append(Bottleneck(channels, planes, 2 if number and not place else 1))
                channels = 4 * planes
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        heads = channels // values["head_width"]
        cells = (values["image_size"] // 32) ** 2
        self.attnpool = AttentionPool(cells, channels, heads, embedding)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, E)."""
        x = functional.relu(self.bn1(self.conv1(image)))
        x = functional.relu(self.bn2(self.conv2(x)))
        x = functional.avg_pool2d(functional.relu(self.bn3(self.conv3(x))), 2)
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.attnpool(x)


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
        vision, embedding = model["vision_cfg"], model["embed_dim"]
        is_resnet = isinstance(vision["layers"], list)
        self.visual = ResNet(vision, embedding) if is_resnet else ViT(vision, embedding, activation)
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
