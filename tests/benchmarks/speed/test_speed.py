"""The benchmark's own arithmetic."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness.closed_loop import Loop
from benchmarks.harness.system import System
from benchmarks.speed import poisson, report, roofline, served
from benchmarks.speed.rounds import Cell, Result
from benchmarks.speed.work import Clock, Item, Timing, Work, random_work


def _result(engine: str, batch: int, beams: int, *speeds: float, threads: int = 2) -> Result:
    work = Work((Item(source=(1,)),) * batch, beams, 10)
    timings = [Timing(seconds=1.0, tokens=int(speed), cpu_seconds=2.0) for speed in speeds]
    return Result(Cell("marian", "w", (work,)), System(engine, "int8", threads), timings)


def test_ratio_is_of_medians_and_means_are_geometric() -> None:
    results = [
        _result("triptych", 1, 1, 100, 400, 900),
        _result("ctranslate2", 1, 1, 100, 100, 100),
        _result("triptych", 8, 4, 100),
        _result("ctranslate2", 8, 4, 100),
    ]
    found = report.comparisons([report.row(result) for result in results])
    (values,) = found.values()
    assert list(found) == ["triptych int8 / ctranslate2 int8"]
    assert values["cells"] == {"marian w, greedy, batch 1": 4.0, "marian w, beam 4, batch 8": 1.0}
    assert values["geometric_mean"] == pytest.approx(2.0)
    assert (values["least"], values["greedy"]) == (1.0, pytest.approx(4.0))


def test_ratio_is_to_the_better_number_of_threads_of_each_cell() -> None:
    results = [
        _result("triptych", 1, 1, 600),
        _result("ctranslate2", 1, 1, 100),
        _result("ctranslate2", 1, 1, 300, threads=1),
        _result("triptych", 8, 1, 600),
        _result("ctranslate2", 8, 1, 400),
        _result("ctranslate2", 8, 1, 300, threads=1),
    ]
    rows = [report.row(result) for result in results]
    assert len({row["engine"] for row in rows}) == 3
    (values,) = report.comparisons(rows).values()
    assert list(values["cells"].values()) == [2.0, 1.5]


def test_report_is_written_with_its_picture(tmp_path: Path) -> None:
    rows = [report.row(_result("triptych", batch, 1, 100)) for batch in (1, 8)]
    report.write({"rows": rows}, tmp_path)
    assert json.loads((tmp_path / "speed.json").read_text())["rows"] == rows
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_clock_measures_first_tokens_and_gaps() -> None:
    clock, timing = Clock(2, started_s=10.0), Timing()
    clock.record(0, 10.5)
    clock.record(1, 10.25)
    clock.record(0, 11.0, tokens=2)
    clock.fill(timing)
    assert timing.first_ms == [500, 250]
    assert timing.gaps_ms == [500, 0]


@pytest.mark.parametrize("kind", ["translate", "generate", "caption"])
def test_work_crosses_a_pipe_and_is_new_each_round(kind: str) -> None:
    works = [random_work(kind, 3, 4, 100, seed, 32) for seed in (0, 0, 1)]
    assert works[0] == works[1] != works[2]
    assert len(set(works[0].items)) == 3
    assert Work.from_json(json.loads(json.dumps(asdict(works[0])))) == works[0]


def test_what_is_kept_is_compared_round_by_round() -> None:
    def loops(*tokens: float) -> list[Loop]:
        return [Loop(each, each / 32, (1.0,), {"client": 2.0}) for each in tokens]

    row = served.row(8, loops(100, 200, 400), loops(90, 160, 400))
    assert row["kept"] == pytest.approx(0.9)
    assert row["rounds_kept"] == [0.9, 0.8, 1.0]


def test_static_batches_wait_for_their_longest() -> None:
    asked = [poisson.Arrival(0.0, (1,), tokens) for tokens in (8, 64, 16)]
    batches: list[int] = []
    measured = poisson.static(asked, lambda batch: batches.append(len(batch)))
    assert sum(batches) == 3
    assert measured["latency_ms_p95"] >= measured["latency_ms_p50"] >= 0


def test_arrivals_are_the_same_for_all_and_ordered() -> None:
    first, second = (poisson.arrivals(10.0, 50, 100) for _ in range(2))
    assert first == second
    times = [arrival.at_s for arrival in first]
    assert times == sorted(times)
    assert {arrival.new_tokens for arrival in first} == set(poisson.LENGTHS)


def test_lookup_tables_do_not_count_as_weights_read(tmp_path: Path) -> None:
    table = np.zeros((64, 8), np.int8)
    constants = [
        numpy_helper.from_array(table, "looked_up"),
        numpy_helper.from_array(table, "tied"),
        numpy_helper.from_array(np.zeros((8, 16), np.float32), "weight"),
    ]
    nodes = [
        helper.make_node("Gather", ["looked_up", "i"], ["a"]),
        helper.make_node("Gather", ["tied", "i"], ["b"]),
        helper.make_node("Transpose", ["tied"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMulIntegerToFloat", ["x", "turned"], ["c"], domain="com.microsoft"),
        helper.make_node("MatMul", ["x", "weight"], ["d"]),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [value], [], constants)
    onnx.save_model(helper.make_model(graph), str(tmp_path / "g.onnx"))
    assert roofline.weight_bytes(tmp_path / "g.onnx") == 64 * 8 + 4 * 8 * 16


@pytest.mark.parametrize("kind", ["translate", "generate", "caption"])
def test_a_warm_up_is_as_large_and_is_not_measured(kind: str) -> None:
    work = random_work(kind, 3, 4, 100, 0, 32)
    warm = work.warm_up(4)
    assert (warm.new_tokens, warm.beams) == (4, 4)
    for item, other in zip(work.items, warm.items, strict=True):
        assert (len(item.source), len(item.prompt)) == (len(other.source), len(other.prompt))
        assert item.source[-1:] == other.source[-1:]
        assert item != other
        if item.prompt:
            assert item.prompt[:2] != other.prompt[:2]
