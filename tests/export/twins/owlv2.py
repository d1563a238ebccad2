"""Twins of `export.models.dual_encoders.owlv2`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins import owlvit

TWIN = Twin(
    reference="transformers:Owlv2ForObjectDetection",
    configs=owlvit.TWIN_CONFIGS,
    outputs={"text": "text_embeds"},
)
