"""The estimate of an export's memory beside what full-size exports held."""

from __future__ import annotations

import json
from pathlib import Path

import benchmarks
from export.checkpoint.memory import needed_bytes

MEASURED = Path(benchmarks.__file__).parent / "results" / "full_size_memory.json"


def test_estimate_is_near_what_was_held() -> None:
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    assert not [row["name"] for row in rows if row["error"]]
    ratios = {
        f"{row['name']} {row['precision']} {row['runtime']}": needed_bytes(4 * row["parameters"])
        / row["held_bytes"]
        for row in rows
    }
    assert ratios
    assert {name: ratio for name, ratio in ratios.items() if not 0.8 <= ratio <= 1.5} == {}
