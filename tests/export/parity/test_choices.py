"""The gate over graphs that choose places: near ties are no difference, wrong choices are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.architecture import Graphs, Lowering
from export.parity.graph_runs import TimedRun, torch_run
from export.parity.parity_inputs import Array, Feeds
from export.parity.verify import ParityError, Report, _compare_outputs
from export.report.rows import Failure, RowsAlone
from inference.bundle.manifest import Bundle, Graph, Role
from inference.bundle.manifest import Tensor as Port
from tests.inference.tiny_models import manifest


class Choosing(nn.Module):
    """The best two of four places, the first two of which always tie; rank decides what follows."""

    def __init__(self) -> None:
        super().__init__()
        rows = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.5, 0.1, 0.2], [0.1, 0.1, 0.1]]
        self.places = nn.Parameter(torch.tensor(rows))
        self.values = nn.Parameter(torch.tensor([3.0, 5.0, 7.0, 11.0]))
        self.ranks = nn.Parameter(torch.tensor([1.0, 10.0]))

    def forward(self, pixels: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, ...]:
        scores = (pixels.float().mean(dim=(1, 2)) + 1) @ self.places.T
        best, places = scores.topk(2, dim=1)
        if chosen is not None:
            best, places = best + (best - scores.gather(1, chosen)).abs(), chosen
        return self.values[places] * self.ranks, places, best


PIXELS = Port(name="pixels", dtype="uint8", shape=("B", 2, 2, 3), role=Role.PIXELS)
OUTPUTS = (
    Port(name="logits", dtype="float32", shape=("B", 2), role=Role.LOGITS),
    Port(name="chosen", dtype="int64", shape=("B", 2), role=Role.CHOSEN),
    Port(name="best", dtype="float32", shape=("B", 2), role=Role.CHOSEN_SCORES),
)
GRAPH = Graph(file="model.onnx", inputs=(PIXELS,), outputs=OUTPUTS)


class Session:
    """An exported graph that chooses these places.

    Args:
        is_consistent: Whether it returns the scores of the places that it chose.
    """

    def __init__(self, graphs: Graphs, chosen: tuple[int, int], *, is_consistent: bool) -> None:
        self._run = torch_run(graphs)
        self._module = graphs.lowerings["detect"].module
        self._chosen = chosen
        self._is_consistent = is_consistent

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        pixels = torch.from_numpy(feeds["pixels"])
        chosen = torch.tensor([self._chosen] * len(pixels))
        outputs = self._run(key, {**feeds, "chosen": chosen.numpy()})
        best = self._run(key, feeds)["best"]
        if self._is_consistent:
            assert isinstance(self._module, Choosing)
            scores = (pixels.float().mean(dim=(1, 2)) + 1) @ self._module.places.T
            best = scores.gather(1, chosen).detach().numpy()
        return {**outputs, "best": best}

    def close(self) -> None:
        pass


def _judge(chosen: tuple[int, int], *, is_consistent: bool = True) -> Report:
    graphs = Graphs({"detect": Lowering(Choosing(), GRAPH)}, parts={"detect": ""})
    described = manifest("detect", parts={"detect": "x"}, graphs={"detect": GRAPH})
    described = described.model_copy(update={"tokenizer": None, "generation": None})
    report, run = Report(), Session(graphs, chosen, is_consistent=is_consistent)
    _compare_outputs(report, graphs, Bundle(Path("x"), described), run, TimedRun())
    return report


@pytest.mark.parametrize("chosen", [(0, 1), (1, 0)])
def test_either_order_of_a_tie_is_right(chosen: tuple[int, int]) -> None:
    report = _judge(chosen)
    assert report.worst_difference < 1e-6
    assert set(report.outputs) == {"detect logits", "detect best"}


@pytest.mark.parametrize("is_consistent", [False, True])
@pytest.mark.parametrize("chosen", [(0, 2), (3, 1)])
def test_a_choice_that_is_not_the_best_is_refused(
    chosen: tuple[int, int], is_consistent: bool
) -> None:
    with pytest.raises(ParityError, match="detect"):
        _judge(chosen, is_consistent=is_consistent)


def _rows_alone(change: dict[str, Array]) -> RowsAlone:
    """Rows that alone have other outputs than in their batch."""
    described = manifest("detect", parts={"detect": "x"}, graphs={"detect": GRAPH})
    batch = {"logits": [[3.0, 50.0]], "chosen": [[0, 1]], "best": [[2.0, 2.0]]}

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        outputs = {name: np.array(value * len(feeds["pixels"])) for name, value in batch.items()}
        return outputs | (change if len(feeds["pixels"]) == 1 else {})

    rows = RowsAlone(run, described, tolerance=1e-5)
    rows("detect", {"pixels": np.zeros((2, 2, 2, 3), np.uint8)})
    return rows


def test_a_row_alone_may_choose_the_other_of_a_tie() -> None:
    other = {"logits": np.array([[5.0, 30.0]]), "chosen": np.array([[1, 0]])}
    assert _rows_alone(other).compared == 2
    with pytest.raises(Failure, match="detect row 0: logits alone differs"):
        _rows_alone({"logits": other["logits"]})
    with pytest.raises(Failure, match="detect row 0: best alone differs"):
        _rows_alone(other | {"best": np.array([[2.0, 1.9]])})
