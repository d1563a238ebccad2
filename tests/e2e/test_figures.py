"""The figures of `examples/attention` that served models make, through the real stack."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures import NAMES
from benchmarks.figures.__main__ import FACTS, main
from benchmarks.figures.alignment import SPANISH, Reader
from benchmarks.figures.figure import figure, picture
from tests.e2e.conftest import Stack
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]
SERVED = [name for name in NAMES if figure(name).is_served]


@pytest.mark.parametrize("name", SERVED)
def test_recorded_numbers_are_served_again(stack: Stack, tmp_path: Path, name: str) -> None:
    file = tmp_path / "facts.json"
    main([name, "--url", stack.url, "--folder", str(tmp_path), "--facts", str(file)])
    assert picture(tmp_path, name).stat().st_size > 1000
    found, recorded = (json.loads(path.read_text())[name] for path in (file, FACTS))
    assert found.keys() == recorded.keys()
    for what, value in found.items():
        shown = (float(text.rstrip(" %")) for text in (value, recorded[what]))
        assert next(shown) == pytest.approx(next(shown), abs=1.0 if "%" in value else 0.02), what


@pytest.mark.parametrize("model", ["example-en-fr", "example-es-en"])
def test_alignment_rows_sum_to_one(client: Client, model: str) -> None:
    text = SPANISH if model == "example-es-en" else "The committee signed the agreement."
    ((_, found),) = Reader(client, model).align([text])
    assert np.sum(found.weights, axis=1) == pytest.approx(1.0, abs=1e-3)
