"""Twins of `export.models.captioners.cnn_transformer`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import show_and_tell, transformer

_TINY = transformer.TINY | show_and_tell.TINY_IMAGE | show_and_tell.ENDS
TWIN = tiny_twin(
    "tests.export.models.captioners.captioners_paper:CnnTransformer",
    _TINY | {"num_encoder_layers": 1},
    {
        "odd": transformer.ODD | show_and_tell.ODD_IMAGE | {"num_encoder_layers": 2},
        "gelu": transformer.GELU,
    },
)
