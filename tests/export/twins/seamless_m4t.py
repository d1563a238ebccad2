"""Twins of `export.models.encoder_decoders.seamless_m4t`."""

from __future__ import annotations

from typing import Any

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    """BART's fields under their names here."""
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    theirs = {name: value for name, value in fields.items() if not name.endswith("_id")}
    return {"hidden_size": theirs.pop("d_model"), **theirs, **ids}


_V2 = {"model_type": "seamless_m4t_v2"}
TWIN = Twin(
    reference="transformers:SeamlessM4TForTextToText",
    configs={
        "plain": _named(TINY),
        "odd": _named(ODD) | {"scale_embedding": False, "decoder_layers": 1},
        "v2": _named(ODD) | _V2 | {"activation_function": "gelu"},
        "separate-tables": _named(TINY) | {"tie_word_embeddings": False},
        "v2 with separate tables": _named(TINY) | _V2 | {"tie_word_embeddings": False},
    },
    references=dict.fromkeys(
        ("v2", "v2 with separate tables"), "transformers:SeamlessM4Tv2ForTextToText"
    ),
)
