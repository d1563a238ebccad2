"""Twins of `export.models.dual_encoders.xclip`."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor
from torch.nn import functional

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin


class XCLIPModel(transformers.XCLIPModel):
    """`transformers`' model with what its parts give each other."""

    def forward(self, *args: Any, **named: Any) -> Any:
        """Also a text's vector and the means of patches over frames, as `change` takes them."""
        found = super().forward(*args, **named)
        shown = self.prompts_visual_layernorm(found.vision_model_output.last_hidden_state[:, 1:])
        patches = shown @ self.prompts_visual_projection
        means = patches.unflatten(0, (-1, self.config.vision_config.num_frames)).mean(1)
        texts = self.text_projection(found.text_model_output.pooler_output)
        return type("Found", (dict,), {"__getattr__": dict.__getitem__})(
            found, patches=means, conditional_embeddings=texts
        )

    def change(self, texts: Tensor, patches: Tensor) -> Tensor:
        """Texts' vectors (B, K, E) as the patches of videos (B, N, E) change them."""
        return functional.normalize(texts + self.prompts_generator(texts, patches), dim=-1)


_TINY_TEXT = TINY_TEXT | {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 1}
_TINY_VIDEO = TINY_IMAGE | {
    "num_frames": 3,
    "mit_hidden_size": 20,
    "mit_intermediate_size": 28,
    "mit_num_attention_heads": 5,
}
TWIN = Twin(
    reference="tests.export.twins.xclip:XCLIPModel",
    configs={
        "plain": {
            "text_config": _TINY_TEXT,
            "vision_config": _TINY_VIDEO,
            "projection_dim": 20,
            "prompt_num_attention_heads": 4,
        },
        "odd": {
            # a token that is within one text of the tests; the end token is the largest of any
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "num_attention_heads": 3, "eos_token_id": 45},
            "vision_config": _TINY_VIDEO
            | {
                "hidden_size": 36,
                "num_attention_heads": 2,
                "patch_size": 12,
                "layer_norm_eps": 1e-3,
                "num_frames": 5,
                "mit_hidden_size": 14,
                "mit_num_hidden_layers": 2,
                "mit_num_attention_heads": 7,
            },
            "projection_dim": 14,
            "prompt_layers": 3,
            "prompt_num_attention_heads": 2,
        },
        "one frame": {
            "text_config": _TINY_TEXT | {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
            "vision_config": _TINY_VIDEO | {"hidden_act": "gelu", "num_frames": 1},
            "projection_dim": 20,
            "prompt_layers": 1,
            "prompt_hidden_act": "relu",
            "prompt_num_attention_heads": 5,
        },
    },
    outputs={"text": "conditional_embeddings"},
)
