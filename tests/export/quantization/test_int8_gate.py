"""How lowered graphs are compared: with their originals, and with exact products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.parity.parity_inputs import Observation
from export.parity.verify import ParityError
from export.precision import Precision
from export.quantization import int8_parity
from export.quantization.int8_parity import (
    LEAST_COSINE,
    RecordedCalls,
    check_products,
    join_numbers,
    least_cosine,
    least_cosines,
    required_cosine,
)
from export.quantization.quantize import quantize
from inference.bundle.manifest import Graph, Tensor
from inference.saturation import open_cpu_session
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.twin import EXPORTED


def _relevance(*numbers: float) -> list[Observation]:
    return [
        Observation(f"text B=1 T={index + 4} logits", np.array([[number]], np.float32))
        for index, number in enumerate(numbers)
    ]


def test_single_numbers_are_compared_together() -> None:
    """A row of one number has no angle: its cosine is 1 or, at a change of sign, -1."""
    wanted = _relevance(-4.0, 3.0, 0.01)
    assert least_cosine(wanted, _relevance(-4.0, 3.0, -0.01))[0] > 0.99999
    worst, place = least_cosine(wanted, _relevance(-4.0, -3.0, 0.01))
    assert worst < 0.5
    assert place == "text logits"


def test_rows_of_several_numbers_stay_as_they_are() -> None:
    rows = [Observation("text B=2 T=4 logits", np.eye(2, dtype=np.float32))]
    assert join_numbers(rows) == rows


def test_worst_row_is_found_and_nan_is_the_worst() -> None:
    want, got = np.eye(2, dtype=np.float32), np.array([[1, 0.1], [0.5, 1]], np.float32)
    wanted = [Observation("text B=2 T=4 logits", want), Observation("text x:3 logits", want)]
    given = [Observation("", want), Observation("", got)]
    worst, place = least_cosine(wanted, given)
    assert place == "text x:3 logits"
    assert worst == pytest.approx(1 / np.sqrt(1.25))
    assert np.isnan(least_cosine(wanted, [given[1], Observation("", got * np.nan)])[0])
    assert least_cosines(wanted, given)["text logits"] == pytest.approx(worst)


def test_verification_requires_what_the_export_measured() -> None:
    assert required_cosine({}) == (LEAST_COSINE, "")
    assert required_cosine({"int8": {"calibration": None}}) == (LEAST_COSINE, "")
    recorded = {"calibration": {"from": ["a.txt"]}, "random_cosine": 0.9, "least_cosine": 0.995}
    required, why = required_cosine({"int8": recorded})
    assert required == pytest.approx(0.89)
    assert "0.9950 on samples of a.txt" in why
    assert required_cosine({"int8": recorded | {"random_cosine": 1.0}})[0] == LEAST_COSINE


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module", params=["int8", "int8-fast"])
def layers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two linear layers in a precision."""
    x = Tensor(name="x", dtype="float32", shape=("B", "T", 64))
    y = Tensor(name="y", dtype="float32", shape=("B", "T", 40))
    path = tmp_path_factory.mktemp("layers") / "layers.onnx"
    to_onnx(Lowering(_Layers(), Graph(file=path.name, inputs=(x,), outputs=(y,))), path)
    quantize(path, Precision(request.param))
    return path


def _calls() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{"x": random.normal(size=(b, 3, 64)).astype(np.float32)} for b in (1, 4)]


class _Inexact:
    """A session whose products are off by one unit of their scale in one value."""

    def __init__(self, *arguments: Any) -> None:
        self._session = open_cpu_session(*arguments)

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        outputs = self._session.run(names, feeds)
        for output in outputs:
            if output.dtype == np.float32 and output.ndim > 1:
                output[..., -1, -1] *= 1.001
        return outputs


def test_products_of_this_processor_are_exact(layers: Path) -> None:
    found = check_products({"step": layers}, {"step": _calls()})
    assert found.products == 2
    assert found.is_exact
    assert 0 < found.worst < 3e-7


def test_one_value_that_is_off_is_found_and_named(
    layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_parity, "open_cpu_session", _Inexact)
    found = check_products({"step": layers}, {"step": _calls()})
    assert not found.is_exact
    assert found.name in found.refusal()


def test_saturated_products_fail_though_scores_are_close(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part in a thousand of a value leaves each cosine above 0.99999."""
    monkeypatch.setattr(int8_parity, "open_cpu_session", _Inexact)
    with pytest.raises(ParityError, match="does not multiply exactly; nothing was published"):
        lowered(bundles("marian", EXPORTED), twins("marian", EXPORTED), tmp_path)


def test_first_and_largest_call_are_recorded() -> None:
    recorded = RecordedCalls(lambda key, feeds: feeds)
    sizes = (1, 5, 3, 9, 2)
    for size in sizes:
        recorded("step", {"x": np.zeros(size)})
    assert [feeds["x"].size for feeds in recorded.calls["step"]] == [1, 9]


def test_graph_without_products_has_none(tmp_path: Path) -> None:
    x = Tensor(name="x", dtype="float32", shape=("B", "T", 64))
    path = tmp_path / "layer.onnx"
    y = x.model_copy(update={"name": "y"})
    to_onnx(Lowering(nn.ReLU(), Graph(file=path.name, inputs=(x,), outputs=(y,))), path)
    assert check_products({"a": path}, {"a": _calls()}).products == 0
    assert onnxruntime.InferenceSession(str(path)).get_outputs()[0].name == "y"
