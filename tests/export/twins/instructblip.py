"""Twins of `export.models.vision_language.instructblip`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import blip_2, llama

_PLAIN, _ODD = blip_2.TWIN.configs["plain"], blip_2.TWIN.configs["odd"]
TWIN = tiny_twin(
    "transformers:InstructBlipForConditionalGeneration",
    _PLAIN,
    {
        "odd": {
            **_ODD,
            "text_config": {
                **llama.TINY,
                "model_type": "llama",
                "hidden_size": 30,
                "num_attention_heads": 6,
                "head_dim": 10,
                "max_position_embeddings": 64,
                "pad_token_id": 0,
            },
        },
        "every block reads the image": blip_2.TWIN.configs["every block reads the image"],
        "flan-t5": blip_2.TWIN.configs["flan-t5"],
    },
)
