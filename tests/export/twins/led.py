"""Twins of `export.models.encoder_decoders.led`."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY


class LEDForConditionalGeneration(transformers.LEDForConditionalGeneration):  # type: ignore[misc]
    """The model of `transformers` whose callers let the first token attend to all."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.led.encoder.register_forward_pre_hook(_attend_from_first, with_kwargs=True)


def _attend_from_first(
    encoder: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Adds the mask to the arguments of a call."""
    mask = torch.zeros_like(named["input_ids"])
    mask[:, 0] = 1
    return given, named | {"global_attention_mask": mask}


_SIZES = {"max_encoder_position_embeddings": 48, "max_decoder_position_embeddings": 32}
_LED = {name: value for name, value in TINY.items() if name != "max_position_embeddings"} | _SIZES
_ODD = {name: ODD[name] for name in ODD if name in _LED} | _SIZES
TWIN = Twin(
    reference="tests.export.twins.led:LEDForConditionalGeneration",
    configs={
        "plain": _LED | {"attention_window": 4},
        # sources of several blocks, and of one in another layer
        "odd": _ODD | {"encoder_layers": 3, "decoder_layers": 1, "attention_window": [4, 8, 4]},
        "separate-tables": _LED
        | {"tie_word_embeddings": False, "activation_function": "relu", "attention_window": 6},
        "one block": _LED | {"attention_window": 16, "pad_token_id": 0, "bos_token_id": 1},
    },
)
