"""M2M-100 and NLLB-200: a Transformer with norms in front that translates between many languages.

Papers: Fan et al. 2021, "Beyond English-Centric Multilingual Machine Translation", §3 (arXiv
2010.11125); NLLB Team 2022, "No Language Left Behind" (arXiv 2207.04672), its dense models.
Checkpoints: `facebook/m2m100_*`, `facebook/nllb-200-*` (`model_type: m2m_100`).

Sinusoidal positions begin behind the padding token's id, whose own position is zero. Sources are
`[language] text </s>`, outputs begin with the target's language.
Differences from `transformers`: as in `bart.py`, whose network this is; the table of positions does
not grow beyond `max_position_embeddings`; a padding token within a text keeps its place, where
`transformers` leaves it out of the count.
"""

from __future__ import annotations

from export.models.encoder_decoders.bart import Form, Positions, declare
from export.tokenizer.languages import token_section

FORM = Form(
    positions=Positions.SPREAD_SINUSOIDS,
    is_norm_first=True,
    has_embedding_norm=False,
    has_final_norm=True,
    has_output_bias=False,
    activation="relu",
    is_embedding_scaled=True,
)

ARCHITECTURE = declare("m2m_100", {"translate": token_section}, FORM)
