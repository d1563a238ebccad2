"""Twins of `export.models.captioners.cnn_transformer`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import captioner_config, transformer

_TINY = transformer.TINY | captioner_config.TINY_IMAGE | captioner_config.ENDS
TWIN = tiny_twin(
    "tests.export.models.captioners.captioners_paper:CnnTransformer",
    _TINY | {"num_encoder_layers": 1},
    {
        "odd": transformer.ODD | captioner_config.ODD_IMAGE | {"num_encoder_layers": 2},
        "gelu": transformer.GELU,
    },
)
