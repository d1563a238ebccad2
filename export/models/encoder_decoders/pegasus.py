"""Pegasus: BART's network with sinusoidal positions and norms in front.

Paper: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive
Summarization", §3 (arXiv 1912.08777).
Checkpoints: `google/pegasus-*` (`model_type: pegasus`).

Differences from `transformers`: as in `bart.py`, whose network this is.
"""

from __future__ import annotations

from export.architecture import no_section
from export.models.encoder_decoders.bart import Form, Positions, declare

FORM = Form(
    positions=Positions.SINUSOIDS,
    is_norm_first=True,
    has_embedding_norm=False,
    has_final_norm=True,
    pad_token_id=0,
)

ARCHITECTURE = declare("pegasus", {"generate": no_section}, FORM)
