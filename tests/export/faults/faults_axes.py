"""Mistakes of a port of a model with positions in axes, one at a time; see `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from export.decoder_graphs import image_tokens
from export.models.vision_language import qwen2_vl
from export.models.vision_language.qwen2_vl import SquareEmbedding
from tests.export.faults.faults import Fault, change

_PLACES, _ANGLES = image_tokens.image_places, qwen2_vl.axial_angles


def _placed(edit: Callable[[Tensor], Tensor]) -> Fault:
    """Places of an image's vectors, edited."""
    return lambda net: patch.object(
        image_tokens, "image_places", lambda *size: edit(_PLACES(*size))
    )


def _turned(rows: int, columns: int, *rest: Any) -> tuple[Tensor, Tensor]:
    """Angles whose halves are exchanged."""
    cosine, sine = _ANGLES(rows, columns, *rest)
    half = cosine.shape[-1] // 2
    return cosine.roll(half, dims=-1), sine.roll(half, dims=-1)


def _reversed_sections(net: Any) -> None:
    for block in net.decoder.blocks:
        heads = block.attention.heads
        sections = heads.rotary.sections[::-1]
        block.attention.heads = replace(heads, rotary=replace(heads.rotary, sections=sections))


def _last_alone(places: Tensor) -> Tensor:
    return places * torch.tensor([1, 1, 1, 0])


AXES: dict[str, Fault] = {
    "what follows an image continues its tokens": _placed(_last_alone),
    "height and width are swapped": _placed(lambda places: places[:, [0, 2, 1, 3]]),
    "an image is a row of words": _placed(torch.zeros_like),
    "sections are read backwards": change(_reversed_sections),
    "only the first frame is read": lambda net: patch.object(
        SquareEmbedding, "_summed", lambda own: own.weight[:, :, 0].flatten(1)
    ),
    "rows and columns of patches are swapped": lambda net: patch.object(
        qwen2_vl, "axial_angles", _turned
    ),
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("qwen2_vl", "odd"): AXES,
    ("qwen2_5_vl", "odd"): {
        "what fills a window up is seen": lambda net: patch.object(qwen2_vl, "MASKED_SCORE", 0.0),
    },
    ("qwen2_5_vl", "plain"): {
        "patches attend beyond their windows": change(
            lambda net: setattr(
                net.encoder, "config", replace(net.encoder.config, whole=frozenset({0, 1}))
            )
        ),
    },
}
"""(architecture, configuration of its twin) → title → fault."""
