"""The benchmark of speed: arithmetic, peers and prompts."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from transformers import AutoTokenizer

from benchmarks.full_size.shapes import save_byte_pairs
from benchmarks.harness.closed_loop import Loop, Reply, open_loop
from benchmarks.harness.system import System
from benchmarks.speed import __main__ as speed
from benchmarks.speed import genai, llama_cpp, online, poisson, report, roofline, served
from benchmarks.speed.questions import (
    EDGE,
    LETTERS,
    PICTURES,
    QWEN,
    SPECIAL,
    VOCABULARY,
    picture,
    question_text,
    special_id,
)
from benchmarks.speed.work import (
    VARIED,
    Cell,
    Clock,
    Item,
    Result,
    Timing,
    Work,
    random_work,
    varied_work,
)
from inference import openvino_core
from inference.processing.sentences import split_sentences
from tests.collector import handled_by


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


def test_beams_are_reported_without_greedy_search(tmp_path: Path) -> None:
    rows = [report.row(_result(engine, 1, 4, 100)) for engine in ("triptych", "ctranslate2")]
    found = report.comparisons(rows)
    shown = report.comparison_table(found)
    assert [next(iter(column.cells)) for column in shown.columns][1:] == ["1.00", "1.00", "–"]
    report.write({"rows": rows, "comparisons": found}, tmp_path)


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


def test_halves_of_a_head_become_neighbours() -> None:
    weights = np.arange(8 * 3).reshape(8, 3)  # two heads of four
    rows = llama_cpp.pair_halves(weights, 2)[:, 0] // 3
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    for lacking in ("llama_cpp", "gguf"):
        monkeypatch.setattr(
            llama_cpp.importlib.util,
            "find_spec",
            lambda name, lacking=lacking: None if name == lacking else find("json"),
        )
        assert llama_cpp.missing() == f"{lacking} is not installed"
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: find("json"))
    assert llama_cpp.missing() is None


def test_decoders_are_measured_only_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["speed"])
    assert not set(speed.parse_arguments().models) & set(speed.DECODERS)
    runtimes = {system.runtime for system in speed.systems_of(speed.DECODERS[0])}
    assert runtimes == {"triptych-openvino", *speed.PEERS, "transformers"}


def test_int8_over_openvino_is_left_out_where_no_activations_are_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openvino_core, "scales_activations", lambda: False)
    find_reason = speed.LIMITED["triptych-openvino"]
    assert "no VNNI" in (find_reason("marian-74m", "int8", speed.CACHE) or "")
    assert find_reason("marian-74m", "fp32", speed.CACHE) is None


@pytest.mark.parametrize("model", PICTURES)
def test_a_question_holds_its_picture_and_differs_from_others(model: str) -> None:
    work = random_work(model, 8, 1, 0, 0, 64)
    assert Work.from_json(json.loads(json.dumps(asdict(work)))) == work
    assert len({item.prompt for item in work.items}) == 8
    assert len({item.image for item in work.items}) == 8
    for item in work.items:
        assert item.is_question
        assert item.prompt.count(PICTURES[model].token_id) == PICTURES[model].tokens
    warm = work.warm_up(4)
    assert [len(item.prompt) for item in warm.items] == [len(item.prompt) for item in work.items]
    assert not {item.image for item in work.items} & {item.image for item in warm.items}


def test_text_and_ids_of_a_question_are_the_same(tmp_path: Path) -> None:
    save_byte_pairs(tmp_path, VOCABULARY, SPECIAL)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == VOCABULARY
    for token in SPECIAL:
        assert tokenizer.convert_tokens_to_ids(token) == special_id(token)
    for item in random_work(QWEN, 4, 1, 0, 0, 64).items:
        text = question_text(item.prompt)
        assert len(text) == 2 * LETTERS
        assert tuple(tokenizer.encode(text)) == item.prompt[-2 * LETTERS :]


def test_a_picture_is_that_of_its_seed() -> None:
    assert picture(3).shape == (EDGE, EDGE, 3)
    assert np.array_equal(picture(3), picture(3))
    assert not np.array_equal(picture(3), picture(4))


def test_answers_agree_up_to_their_first_other_token() -> None:
    def answered(runtime: str, *answers: list[int]) -> Result:
        cell = Cell(QWEN, "w", (random_work(QWEN, len(answers), 1, 0, 0, 4),))
        return Result(cell, System(runtime, "fp32"), [Timing(answers=list(answers))])

    theirs = answered("transformers", [1, 2, 3, 4], [5, 6, 7, 8])
    ours = answered("triptych", [1, 2, 9, 4], [5, 6, 7, 8])
    assert report.same_tokens(ours, [ours, theirs]) == 6 / 8
    assert report.same_tokens(theirs, [ours, theirs]) == 1
    assert report.same_tokens(ours, [ours]) is None
    assert report.same_tokens(Result(ours.cell, ours.system, [Timing()]), [theirs]) is None


def test_a_peer_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: None)
    assert genai.missing(QWEN, "fp32", tmp_path) == "openvino_genai is not installed"
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: object())
    assert str(tmp_path) in (genai.missing(QWEN, "int8", tmp_path) or "")
    folder = genai.folder_of(QWEN, "bf16", tmp_path)
    assert folder == genai.folder_of(QWEN, "fp32", tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert genai.missing(QWEN, "bf16", tmp_path) is None


@pytest.mark.parametrize("kind", VARIED)
def test_answers_end_at_lengths_of_their_own_where_all_engines_can(kind: str) -> None:
    low, high = VARIED[kind].sources
    work = varied_work(kind, 32, 1, seed=3)
    sizes = [len(item.source) for item in work.items]
    assert low <= min(sizes) < max(sizes) <= high
    assert work.lengths == [item.new_tokens for item in work.items]
    assert len(set(work.lengths)) > 8
    assert max(work.lengths) == work.new_tokens
    assert Work.from_json(json.loads(json.dumps(asdict(work)))) == work
    assert set(varied_work(kind, 8, 4, seed=3).lengths) == {VARIED[kind].new_tokens}
    assert work.warm_up(2).lengths == [2] * 32


@pytest.mark.parametrize("first", [4.0, 100.0])
def test_the_highest_rate_is_between_one_in_time_and_one_that_is_not(first: float) -> None:
    def trial(rate: float) -> online.Trial:
        return online.Trial(rate, 10.0, 50 * rate, 20.0, 60 * rate)  # 1000 ms at 20 a second

    trials = online.find_highest(trial, first, halvings=3)
    assert 19 < online.best(trials).rate < 20
    assert any(20 <= each.rate < 21 for each in trials)
    assert online.best(online.find_highest(trial, 1000.0, halvings=3)).rate == 0


def test_a_rate_is_in_time_by_the_first_text_and_by_the_whole() -> None:
    assert online.Trial(1.0, 10.0, 990.0, 10.0, 9990.0).is_in_time
    assert not online.Trial(1.0, 10.0, 1000.0, 10.0, 9990.0).is_in_time
    assert not online.Trial(1.0, 10.0, 990.0, 10.0, 10_000.0).is_in_time
    assert not online.Trial(1.0).is_in_time


def test_a_trial_counts_tokens_and_refuses_other_numbers_of_them() -> None:
    body = b'{"usage":{"completion_tokens":8}}'
    replies = [Reply(first_s, 2 * first_s, body) for first_s in (0.1, 0.2, 0.3)]
    trial = online.measure(5.0, replies, asked=24, seconds=2.0)
    assert (trial.first_p50_ms, trial.p50_ms) == pytest.approx((200, 400))
    assert trial.first_p50_ms < trial.first_p95_ms < 300
    assert trial.tokens_per_second == 12
    with pytest.raises(ValueError, match="24 tokens in place of 25"):
        online.measure(5.0, replies, asked=25, seconds=2.0)


def test_rounds_become_medians_with_all_trials_and_a_picture(tmp_path: Path) -> None:
    rounds = [
        [online.Trial(rate, 1.0, 2.0, 3.0, 4.0), online.Trial(9.0)] for rate in (3.0, 5.0, 4.0)
    ]
    row = online.row(rounds)
    assert (row["median"], row["rounds"]) == (4.0, [3.0, 5.0, 4.0])
    assert (row["first_p95_ms"], row["p95_ms"]) == (2.0, 4.0)
    assert [trial["p95_ms"] for trial in row["trials"]] == [4.0, None] * 3
    late = online.row([[online.Trial(1.0, 1.0, 2000.0, 3.0, 4000.0)]])
    assert (late["median"], late["p95_ms"]) == (0, None)
    report = {"chat": {"model": "m", "rows": {"ours": row, "theirs": late}}}
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    online.plot(report, tmp_path / "online.png")
    assert (tmp_path / "online.png").read_bytes().startswith(b"\x89PNG")


def test_arrivals_wait_for_no_answer() -> None:
    """A server that answers none of three requests before it has all of them."""

    class Together(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            try:
                all_are_here.wait(timeout=5)
                self.send_response(200)
            except threading.BrokenBarrierError:
                self.send_response(503)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    all_are_here = threading.Barrier(3)
    with handled_by(Together) as url:
        asked = [(0.0, b"{}"), (0.0, b"{}"), (0.2, b"{}")]
        replies = open_loop(url.removeprefix("http://"), "/", asked)
    assert [reply.body for reply in replies] == [b"{}"] * 3
    assert all(reply.first_s == reply.whole_s for reply in replies)
    assert sorted(reply.whole_s for reply in replies)[1] >= 0.19, "the first two wait for the third"


def test_a_stream_begins_with_its_first_text_and_ends_with_its_last_chunk() -> None:

    class Stream(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for event in events:
                time.sleep(0.05)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    events = (b'{"content":""}', b'{"content":"w7"}', b'{"completion_tokens":1}')
    with handled_by(Stream) as url:
        replies = open_loop(url.removeprefix("http://"), "/", [(0.0, b"{}"), (0.4, b"{}")])
    assert len(replies) == 2
    for reply in replies:
        assert 0.1 <= reply.first_s <= reply.whole_s - 0.04
        assert served.generated(reply.body) == 1


def test_texts_that_arrive_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        def encode(self, text: str) -> list[str]:
            return text.split()

    monkeypatch.setattr(served, "load_tokenizer", lambda bundle: Words())
    requests = list(islice(served.make_texts(None, seed=7), 50))  # type: ignore[arg-type]
    bodies = [json.loads(body) for body, _ in requests]
    assert [body["max_new_tokens"] for body in bodies] == [tokens for _, tokens in requests]
    texts = [text for body in bodies for text in body["texts"]]
    assert max(len(text.split()) for text in texts) > 40
    assert [split_sentences(text).sentences for text in texts] == [(text,) for text in texts]


def test_chats_that_arrive_differ_and_have_a_token_a_word() -> None:
    requests = list(islice(online.make_chats("m", seed=7), 50))
    bodies = [json.loads(body) for body, _ in requests]
    prompts = [body["messages"][0]["content"].split() for body in bodies]
    low, high = VARIED["chat"].sources
    assert low <= min(map(len, prompts)) < max(map(len, prompts)) <= high
    assert all(re.fullmatch(r"w\d+", word) for prompt in prompts for word in prompt)
    assert len({tuple(prompt) for prompt in prompts}) == 50
    assert [body["max_tokens"] for body in bodies] == [tokens for _, tokens in requests]
