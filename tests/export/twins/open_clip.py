"""Twins of `export.models.dual_encoders.open_clip`."""

from __future__ import annotations

from collections.abc import Mapping

from tests.export.twin import Twin

_TINY_TEXT = {"context_length": 12, "vocab_size": 64, "width": 24, "heads": 3, "layers": 1}
_TINY_IMAGE = {"image_size": 32, "patch_size": 8, "width": 24, "head_width": 8, "layers": 1}
_TINY_RESNET = {"width": 4, "head_width": 16, "layers": [1, 1, 2, 1], "patch_size": None}


def _twin_config(
    text: Mapping[str, object], image: Mapping[str, object], **fields: object
) -> dict[str, object]:
    towers = {"text_cfg": {**_TINY_TEXT, **text}, "vision_cfg": {**_TINY_IMAGE, **image}}
    model = {"embed_dim": 20, **towers}
    return {"model_cfg": model | fields, "preprocess_cfg": {"resize_mode": "squash"}}


TWIN = Twin(
    reference="tests.export.models.dual_encoders.open_clip_paper:OpenClip",
    configs={
        "odd": _twin_config(
            {"width": 30, "mlp_ratio": 1.5, "layers": 2},
            _TINY_RESNET | {"image_size": 75},  # grids of 19, 9, 4 and 2
            embed_dim=7,
            quick_gelu=True,
        ),
        "resnet-gelu": _twin_config(
            {}, _TINY_RESNET | {"image_size": 96, "width": 2, "head_width": 64}
        ),
        "vit": _twin_config(
            {"width": 30, "mlp_ratio": 1.5, "layers": 2},
            {"width": 36, "head_width": 18, "patch_size": 12, "image_size": 40, "mlp_ratio": 1.7},
            embed_dim=7,
            quick_gelu=True,
        ),
        "gelu": _twin_config(
            {"norm_kwargs": {"eps": 1e-3}}, {"patch_size": [8, 4], "image_size": [24, 32]}
        ),
    },
    outputs={"image": "image_embeds", "text": "text_embeds"},
)
