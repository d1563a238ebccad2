"""Pegasus: BART's network with sinusoidal positions and norms in front.

Paper: Zhang et al. 2020, "PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive
Summarization", §3 (arXiv 1912.08777).
Checkpoints: `google/pegasus-*` (`model_type: pegasus`).

Differences from `transformers`: as in `bart.py`, whose network this is.
"""

from __future__ import annotations

from functools import partial

from export.architecture import Architecture, no_section
from export.models.bart import (
    ODD,
    TINY,
    Bart,
    Form,
    Positions,
    alignment,
    graphs,
    read_config,
    rename,
)
from export.twin import Twin

FORM = Form(
    positions=Positions.SINUSOIDS,
    is_norm_first=True,
    has_embedding_norm=False,
    has_final_norm=True,
)
_IDS = {
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 1,
}
TWIN = Twin(
    reference="transformers:PegasusForConditionalGeneration",
    configs={
        "plain": TINY | _IDS | {"activation_function": "relu"},
        "odd": ODD | _IDS | {"activation_function": "relu"},
    },
)

ARCHITECTURE = Architecture(
    name="pegasus",
    tasks={"generate": no_section},
    read_config=partial(read_config, form=FORM),
    build=Bart,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
    details=alignment,
)
