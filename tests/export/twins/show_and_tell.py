"""Twins of `export.models.captioners.show_and_tell`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins.captioner_config import ODD, TINY

TWIN = tiny_twin(
    "tests.export.models.captioners.captioners_paper:ShowAndTell",
    TINY,
    {"odd": {**ODD, "channels": [4, 6, 5]}},
)
