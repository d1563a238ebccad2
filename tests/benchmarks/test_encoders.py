"""The encoders' benchmark: its requests, its arithmetic and its report."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Iterator
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.encoders import in_process, report, served
from benchmarks.encoders.__main__ import main
from benchmarks.encoders.models import CLOSING, MIXED_WORDS, OPENING, PHOTOS, Traffic, Work
from benchmarks.encoders.servers import (
    Connection,
    InfinityDialect,
    Server,
    TriptychDialect,
    parse_head,
    supports,
)
from benchmarks.harness.closed_loop import Loop
from benchmarks.harness.machine import write_json
from tests.collector import handled_by

INT8, FP32 = "triptych openvino-int8", "infinity torch-fp32"


def test_no_text_is_sent_twice_and_lengths_are_as_stated() -> None:
    fixed = list(itertools.islice(Traffic(16).items(seed=0), 200))
    assert len(set(fixed)) == 200
    assert {len(str(text).split()) for text in fixed} == {14}  # and the two tokens around
    mixed = [len(str(text).split()) for text in itertools.islice(Traffic(0).items(0), 500)]
    assert (min(mixed), max(mixed)) == MIXED_WORDS


def test_no_jpeg_file_is_sent_twice_and_all_can_be_read() -> None:
    files = list(itertools.islice(Traffic(None).items(seed=0), 2 * PHOTOS))
    assert len(set(files)) == len(files)
    first, again = (
        Image.open(io.BytesIO(file)) for file in files[::PHOTOS] if isinstance(file, bytes)
    )
    assert first.size == (640, 480)
    assert first.info["comment"] != again.info["comment"]
    assert first.tobytes() == again.tobytes()


def test_probe_reaches_server_and_reference_as_the_same_tokens() -> None:
    work = Work("text", 1, tokens=9, seed=3)
    ids = work.inputs()
    assert not isinstance(ids, list)
    assert (ids[0, 0], ids[0, -1]) == (OPENING, CLOSING)
    assert report.item(work) == " ".join(f"w{number}" for number in ids[0, 1:-1])


def test_probes_have_the_measured_lengths_and_others() -> None:
    lengths = {work.tokens for work in report.probes("bert-base", longest=128)}
    assert lengths == {16, 128, *report.MIXED_TOKENS}
    assert {work.kind for work in report.probes("vit-b16", longest=128)} == {"jpeg"}


def test_form_holds_the_file_and_the_fields() -> None:
    path, kind, body = TriptychDialect("vit-b16").probe(b"\xff\xd8 pixels")
    message = BytesParser().parsebytes(b"content-type: " + kind.encode() + b"\r\n\r\n" + body)
    parts = {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
        for part in message.walk()
        if not part.is_multipart()
    }
    assert path == "/v1/classify"
    assert parts == {
        "top_k": b"1000",
        "function_to_apply": b"none",
        "images": b"\xff\xd8 pixels",
    }


def test_logits_are_put_in_the_order_of_the_classes() -> None:
    labels = [{"label": "LABEL_2", "score": 5.0}, {"label": "LABEL_0", "score": -1.0}]
    body = json.dumps({"data": [{"labels": labels}]}).encode()
    assert TriptychDialect("vit-b16").vector(body)[:4].tolist() == [-1.0, 0.0, 5.0, 0.0]


def test_infinity_takes_an_image_as_data_uri() -> None:
    _, _, body = InfinityDialect().request(b"jpeg")
    message = json.loads(body)
    head, _, data = message["input"][0].partition(",")
    assert (head, message["modality"]) == ("data:image/jpeg;base64", "image")
    assert base64.b64decode(data) == b"jpeg"


def test_infinity_is_left_out_where_it_cannot_serve_a_model() -> None:
    assert supports(INT8, "vit-b16")
    assert not supports(FP32, "vit-b16")
    assert supports(FP32, "clip-b32")
    assert not supports("infinity optimum-fp32", "clip-b32")


class _Answers(BaseHTTPRequestHandler):
    """Refuses texts with `bad`, embeds others as their length, in two writes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        [text] = json.loads(self.rfile.read(int(self.headers["content-length"])))["texts"]
        body = json.dumps({"data": [{"embedding": [len(text)]}]}).encode()
        self.send_response(429 if "bad" in text else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:5])
        self.wfile.flush()
        self.wfile.write(body[5:])


@pytest.fixture
def url() -> Iterator[str]:
    with handled_by(_Answers) as url:
        yield url


def test_connection_is_kept_and_responses_are_read_whole(url: str) -> None:
    connection = Connection(url)
    for text in ("one", "three"):
        body = json.dumps({"texts": [text]}).encode()
        status, answer = connection.post("/v1/embed", "application/json", body)
        assert status == 200
        assert json.loads(answer) == {"data": [{"embedding": [len(text)]}]}
    connection.close()


def test_failures_are_counted_with_a_reason(url: str) -> None:
    server = Server(url, TriptychDialect("bert-base"))
    assert [server.send(text) for text in ("good", "bad", "good")] == [1, 0, 1]
    assert server.vector("four").tolist() == [4]
    [failure] = server.take_failures()
    assert failure.startswith("429")
    assert server.take_failures() == []
    with pytest.raises(RuntimeError, match="429"):
        server.vector("bad")
    server.close()


def test_server_that_is_gone_is_a_failure_and_not_a_crash() -> None:
    server = Server("http://127.0.0.1:9", TriptychDialect("bert-base"))
    assert server.send("text") == 0
    assert "refused" in server.take_failures()[0]


def test_response_without_length_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
    with pytest.raises(ValueError, match="content-length"):
        parse_head(head)


def test_agreement_is_of_the_worst_vector_and_sees_exchanged_ones() -> None:
    expected = [np.array([1.0, 0.0]), np.array([1.0, 1.0])]
    same = report.compare([vector * 7 for vector in expected], expected)
    assert same == {"least_cosine": 1.0, "mean_cosine": 1.0, "nearest_to_own": 1.0}
    exchanged = report.compare(expected[::-1], expected)
    assert exchanged["least_cosine"] == pytest.approx(0.70711)
    assert exchanged["nearest_to_own"] == 0


def test_measurement_of_wrong_vectors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [Work("text", 1, 7, seed) for seed in range(2)]
    monkeypatch.setattr(Server, "vector", lambda self, text: np.array([1.0, 0.5]))
    server = Server("http://127.0.0.1:9", TriptychDialect("bert-base"))
    expected = [np.array([1.0, 0.5]), np.array([1.0, 0.0])]
    with pytest.raises(RuntimeError, match=r"least_cosine.*allowed 0\.99"):
        report.check("infinity torch-fp32", server, works, expected)


def test_levels_last_long_enough_for_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    lasted: list[tuple[int, float, float]] = []

    def loop(send: Any, items: Any, in_flight: int, counted_s: float, fill_s: float) -> Loop:
        lasted.append((in_flight, counted_s, fill_s))
        return Loop(4.0, 4.0, (250.0,), {"client": 1.0})

    monkeypatch.setattr(served, "closed_loop", loop)
    server = Server("http://127.0.0.1:9", TriptychDialect("bert-base"))
    one = served.ServedSystem(INT8, server, {})
    for in_flight in (1, 32, 128):
        one.measure(Traffic(512), in_flight, Traffic(512).items(0), least_s=3.0)
    assert lasted == [(1, 3.0, served.LEAST_FILL_S), (32, 8.0, 8.0), (128, 32.0, 32.0)]
    assert one.fits(Traffic(512), 128)
    assert not one.fits(Traffic(512), 256)


def test_warm_up_estimates_the_first_level_and_leaves_no_failures(url: str) -> None:
    server = Server(url, TriptychDialect("bert-base"))
    one = served.ServedSystem(INT8, server, {})
    texts = iter(["bad", "good", "good", "not sent"])
    one.warm_up(Traffic(16), texts)
    assert next(texts) == "not sent"
    assert 0 < one.slowest_s[Traffic(16)] < 60
    assert server.take_failures() == []


def test_row_has_percentiles_of_all_rounds_and_the_servers_own_cpu_time() -> None:
    cpu_ms = {"engine": 2.0, "client": 1.0, "other": 9.0}
    loops = [Loop(10.0, 10.0, (1.0, 3.0), cpu_ms), Loop(20.0, 20.0, (5.0,), cpu_ms)]
    ours = served.row(INT8, loops, ["429 full"])
    assert (ours["per_second"], ours["rounds"]) == (15.0, [10.0, 20.0])
    assert (ours["p50_ms"], ours["requests"]) == (3.0, 3)
    assert ours["cpu_ms"] == {"engine": 2.0, "client": 1.0}
    assert (ours["failures"], ours["first_failure"]) == (1, "429 full")
    theirs = served.row(FP32, loops, [])
    assert theirs["cpu_ms"] == {"server": 9.0, "client": 1.0}
    assert theirs["failures"] == 0


def test_batches_of_too_many_tokens_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(in_process, "SystemProcess", lambda *_: pytest.fail("no engine is needed"))
    from rich.console import Console

    cells = list(in_process.works("bert-base", [32], longest=512))
    rows = in_process.measure("bert-base", [], cells, 1, Path(), Console())
    assert rows == []
    assert "batch 32: 16384 tokens" in capsys.readouterr().out
    assert len(list(in_process.works("bert-base", [1, 8], longest=128))) == 4
    assert [work.kind for work in in_process.works("vit-b16", [1], 128)] == ["pixels", "jpeg"]


def _row(engine: str, speed: float, in_flight: int = 8, model: str = "bert-base") -> report.Row:
    return {
        "model": model,
        "work": "16 tokens",
        "in_flight": in_flight,
        "engine": engine,
        "per_second": speed,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "cpu_ms": {"engine": 2.0, "gateway": 1.0, "triton": 0.01},
        "failures": 0,
    }


def test_new_rows_replace_those_of_the_same_cell_only() -> None:
    empty: dict[str, Any] = {"runs": {}, "rows": []}
    first = [_row(INT8, 90), _row(FP32, 30), _row(INT8, 50, 1, "vit-b16")]
    half = report.merge_rows(empty, report.SERVED, "one", {"load": 1}, first)
    half = report.merge_rows(
        half, report.SERVED, "two", {"load": 2}, [_row(INT8, 120), _row(FP32, 20)]
    )
    assert {name: run["load"] for name, run in half["runs"].items()} == {"one": 1, "two": 2}
    assert [(row["model"], row["per_second"], row["run"]) for row in half["rows"]] == [
        ("bert-base", 120, "two"),
        ("bert-base", 20, "two"),
        ("vit-b16", 50, "one"),
    ]
    assert half["ratios"][f"{INT8} / {FP32}"]["geometric_mean"] == 6.0
    replaced = [_row(INT8, 60, 1, "vit-b16")]
    assert list(report.merge_rows(half, report.SERVED, "three", {}, replaced)["runs"]) == [
        "two",
        "three",
    ]


def test_engines_of_different_runs_are_not_compared() -> None:
    rows = [_row(INT8, 90) | {"run": "one"}, _row(FP32, 30) | {"run": "two"}]
    assert report.ratios(rows, report.SERVED) == {}
    [line] = report.cells(rows, report.SERVED)[1]
    assert line[-2:] == ["–", "engine 2.0, gateway 1.0"]


def test_ratios_are_geometric_means_and_name_the_worst_cell() -> None:
    rows = [_row(INT8, 80, 1), _row(FP32, 20, 1), _row(INT8, 20, 8), _row(FP32, 20, 8)]
    rows = [row | {"run": "one"} for row in rows]
    [values] = report.ratios(rows, report.SERVED).values()
    assert values["geometric_mean"] == pytest.approx(2.0)
    assert (values["least"], values["least_at"]) == (1.0, "bert-base 16 tokens 8")
    assert (values["most"], values["cells"]) == (4.0, 2)


def test_markdown_is_a_table_with_a_line_a_cell() -> None:
    failed = _row(FP32, 30) | {"failures": 2}
    rows = [row | {"run": "one"} for row in (_row(INT8, 90), failed)]
    header, rule, line = report.markdown(rows, report.SERVED).splitlines()
    assert header.startswith(f"| items/s (p50 / p99 ms), by in flight | {INT8} | {FP32} |")
    assert header.count("|") == rule.count("|") == line.count("|")
    assert line == (
        "| BERT-base, 16 tokens, 8 | 90 (1 / 2) | 30 (1 / 2, 2 failed) | 3.0 "
        "| engine 2.0, gateway 1.0 |"
    )


def test_report_is_saved_and_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "encoders.json"
    found = report.load(file)
    assert report.page(found) == ""
    half = report.merge_rows(found["served"], report.SERVED, "one", {}, [_row(INT8, 90)])
    write_json(found | {"served": half}, file)
    assert "BERT-base, 16 tokens, 8" in report.page(report.load(file))


def test_committed_results_have_the_form_that_the_report_reads() -> None:
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "encoders.json"
    assert "CLIP B/32, from jpeg, 8" in report.page(report.load(file))


def test_measured_rows_are_printed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [_row(INT8, 90), _row(FP32, 30)]
    monkeypatch.setattr("benchmarks.encoders.__main__.measure", lambda model, arguments: rows)
    output = tmp_path / "encoders.json"
    command = ["encoders", "--served", "--models", "bert-base", "--output", str(output)]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    assert "3.0" in capsys.readouterr().out
    assert len(report.load(output)["served"]["rows"]) == 2
