"""Twins of `export.models.encoder_decoders.bart`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from tests.export.twin import Twin, tiny_twin

SIZES = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
}
TINY = SIZES | {
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
ODD = TINY | {
    "d_model": 30,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_layers": 1,
    "scale_embedding": True,
    "pad_token_id": 0,  # no token of the sources that the tests draw: `generate` would mask it
    "bos_token_id": 1,
}
"""Head widths of 6 and 10, sizes that differ everywhere."""


def _answers(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose head is for answers."""
    return {**fields, "architectures": [f"{prefix}ForQuestionAnswering"]}


BART = Twin(
    reference="transformers:BartForConditionalGeneration",
    configs={
        "plain": TINY,
        "odd": ODD | {"forced_bos_token_id": 1},
        "separate-tables": TINY
        | {"tie_word_embeddings": False, "activation_function": "relu", "decoder_layers": 1},
        "answers": _answers("Bart", ODD | {"decoder_start_token_id": 5}),
        "answers of separate tables": _answers("Bart", TINY | {"tie_word_embeddings": False}),
    },
    references=dict.fromkeys(
        ("answers", "answers of separate tables"), "transformers:BartForQuestionAnswering"
    ),
)
MBART = Twin(
    reference="transformers:MBartForConditionalGeneration",
    configs={
        "plain": TINY | {"scale_embedding": True, "activation_function": "relu"},
        "odd": ODD,
        "answers": _answers("MBart", ODD),
    },
    references={"answers": "transformers:MBartForQuestionAnswering"},
)
_IDS = {
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 1,
    "activation_function": "relu",
}
PEGASUS = Twin(
    reference="transformers:PegasusForConditionalGeneration",
    configs={"plain": TINY | _IDS, "odd": ODD | _IDS},
)
M2M_100 = Twin(
    reference="transformers:M2M100ForConditionalGeneration",
    configs={
        "plain": TINY | {"scale_embedding": False, "pad_token_id": 0, "bos_token_id": 1},
        "odd": ODD,
        "another padding token": TINY | {"pad_token_id": 4, "activation_function": "swish"},
    },
)
_MARIAN = SIZES | {
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 63,
    "eos_token_id": 0,
    "decoder_start_token_id": 63,
    "forced_eos_token_id": 0,
}
_TWO_TABLES = {
    "decoder_vocab_size": 50,
    "share_encoder_decoder_embeddings": False,
    "pad_token_id": 49,
    "decoder_start_token_id": 49,
}
MARIAN = tiny_twin(
    "transformers:MarianMTModel",
    _MARIAN,
    {
        "odd": {
            "d_model": 30,
            "encoder_attention_heads": 5,
            "decoder_attention_heads": 3,
            "encoder_layers": 1,
        },
        "unscaled-relu": {
            "scale_embedding": False,
            "activation_function": "relu",
            "decoder_layers": 3,
        },
        "separate-tables": _TWO_TABLES
        | {"tie_word_embeddings": False, "activation_function": "gelu"},
        "tied-target": _TWO_TABLES
        | {
            "tie_word_embeddings": True,
            "d_model": 36,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "activation_function": "gelu_new",
        },
    },
)
_FSMT = {name: value for name, value in TINY.items() if name != "vocab_size"} | {
    "src_vocab_size": 64,
    "tgt_vocab_size": 57,
    "pad_token_id": 0,
    "bos_token_id": 1,
}


class FSMTForConditionalGeneration(transformers.FSMTForConditionalGeneration):  # type: ignore[misc]
    """The model of `transformers`, called token by token as `generate` does.

    With a cache a call of several tokens has no causal mask; without one it hides padding tokens.
    """

    def forward(self, *given: Any, decoder_input_ids: Any, **named: Any) -> Any:
        return call_by_token(super().forward, *given, decoder_input_ids=decoder_input_ids, **named)


def call_by_token(
    forward: Callable[..., Any], *given: Any, decoder_input_ids: Any, **named: Any
) -> Any:
    """What the model's `forward` gives for each token of the target, with a cache."""
    if named.get("past_key_values") is not None or decoder_input_ids.shape[1] == 1:
        return forward(*given, decoder_input_ids=decoder_input_ids, **named)
    found, named["use_cache"] = [], True
    for token in decoder_input_ids.split(1, dim=1):
        found.append(forward(*given, decoder_input_ids=token, **named))
        named["past_key_values"] = found[-1].past_key_values
    found[-1].logits = torch.cat([each.logits for each in found], dim=1)
    if found[-1].cross_attentions is not None:
        layers = zip(*(each.cross_attentions for each in found), strict=True)
        found[-1].cross_attentions = tuple(torch.cat(each, dim=2) for each in layers)
    return found[-1]


FSMT = Twin(
    reference="tests.export.twins.bart:FSMTForConditionalGeneration",
    configs={
        "plain": _FSMT,
        "odd": {name: value for name, value in (_FSMT | ODD).items() if name != "vocab_size"}
        | {"scale_embedding": False, "decoder_layers": 3, "activation_function": "gelu"},
        "one table": _FSMT | {"tie_word_embeddings": True, "tgt_vocab_size": 64, "pad_token_id": 4},
    },
)
_BLENDERBOT = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "encoder_no_repeat_ngram_size": 0,  # what the export warns of
}
BLENDERBOT = Twin(
    reference="transformers:BlenderbotForConditionalGeneration",
    configs={"plain": TINY | _BLENDERBOT, "odd": ODD | _BLENDERBOT},
)
BLENDERBOT_SMALL = Twin(
    reference="transformers:BlenderbotSmallForConditionalGeneration",
    configs={
        "plain": TINY | {"pad_token_id": 0, "bos_token_id": 1, "activation_function": "relu"},
        "odd": ODD
        | {"d_model": 36, "encoder_attention_heads": 4, "decoder_attention_heads": 2}
        | {"decoder_start_token_id": 1},
    },
)
PLBART = Twin(
    reference="transformers:PLBartForConditionalGeneration",
    configs={"plain": TINY, "odd": ODD | {"scale_embedding": False}},
)
MVP = Twin(
    reference="transformers:MvpForConditionalGeneration",
    configs={
        "plain": TINY | {"activation_function": "relu"},
        "odd": ODD,
        "answers": _answers("Mvp", ODD),
    },
    references={"answers": "transformers:MvpForQuestionAnswering"},
)
_BIGBIRD = {
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 1,
}
BIGBIRD_PEGASUS = Twin(
    reference="transformers:BigBirdPegasusForConditionalGeneration",
    configs={
        "plain": TINY | _BIGBIRD | {"block_size": 2, "num_random_blocks": 1},
        "odd": ODD | _BIGBIRD | {"encoder_attention_heads": 3, "use_bias": True},
        "full": TINY | _BIGBIRD | {"attention_type": "original_full", "scale_embedding": False},
        "answers": _answers("BigBirdPegasus", ODD | _BIGBIRD | {"encoder_attention_heads": 3}),
    },
    references={"answers": "transformers:BigBirdPegasusForQuestionAnswering"},
)
