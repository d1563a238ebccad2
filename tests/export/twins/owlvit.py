"""Twins of `export.models.dual_encoders.owlvit`."""

from __future__ import annotations

from typing import Any

from tests.export.twin import ODD_TEXT, TINY_IMAGE, TINY_TEXT, Twin

_TINY_TEXT = TINY_TEXT | {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 0}
_CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"text_config": _TINY_TEXT, "vision_config": TINY_IMAGE, "projection_dim": 32},
    "odd": {
        "text_config": _TINY_TEXT | ODD_TEXT,
        "vision_config": TINY_IMAGE
        | {"hidden_size": 36, "image_size": 44, "patch_size": 12, "hidden_act": "gelu"},
        "projection_dim": 30,
    },
}
OWLVIT, OWLV2 = (
    Twin(f"transformers:{name}ForObjectDetection", _CONFIGS, outputs={"text": "text_embeds"})
    for name in ("OwlViT", "Owlv2")
)
