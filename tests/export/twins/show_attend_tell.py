"""Twins of `export.models.captioners.show_attend_tell`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins.show_and_tell import ODD, TINY

TWIN = tiny_twin(
    "tests.export.models.captioners.captioners_paper:ShowAttendTell",
    {**TINY, "attention_size": 16},
    {"odd": {**ODD, "attention_size": 7}},
)
