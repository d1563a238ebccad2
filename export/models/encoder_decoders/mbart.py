"""mBART: BART's network with norms in front and behind the last block, for many languages.

Papers: Liu et al. 2020, "Multilingual Denoising Pre-training for Neural Machine Translation", §2.2
(arXiv 2001.08210); Tang et al. 2020, "Multilingual Translation with Extensible Multilingual
Pretraining and Finetuning" (mBART-50, arXiv 2008.00401).
Checkpoints: `facebook/mbart-large-50-*-mmt`, `facebook/mbart-large-en-ro` (`model_type: mbart`).

mBART-50 reads `[language] text </s>` and begins the output with the target's language; the first
mBART reads `text </s> [language]` and its decoder starts from the one target of the checkpoint.
Differences from `transformers`: as in `bart.py`, whose network this is.
"""

from __future__ import annotations

from export.models.encoder_decoders.bart import Form, declare
from export.tokenizer.languages import token_section

FORM = Form(is_norm_first=True, has_final_norm=True)

ARCHITECTURE = declare("mbart", {"translate": token_section}, FORM)
