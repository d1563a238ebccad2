"""Measurements of exports: memory of processes, phases, and the file of results."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.full_size.__main__ import COLUMNS, main, merge_rows, read, table
from benchmarks.full_size.measure import Measured, Phase, run
from benchmarks.full_size.shapes import SHAPES

MIB = 1 << 20
_MEASURED = Measured(
    name="gpt2-124m",
    precision="fp32",
    runtime="onnxruntime",
    parameters=124_000_000,
    seconds=60.0,
    cpu_seconds=90.0,
    load=1.5,
    peak_bytes=2 << 30,
    held_bytes=3 << 29,
    bundle_bytes=1 << 30,
    phases={
        "reading": Phase(3.0, 2.0, MIB, MIB),
        "exporting admit to ONNX": Phase(10.0, 9.0, MIB, MIB),
        "exporting step to ONNX": Phase(12.0, 9.0, MIB, MIB),
    },
)


def test_memory_of_a_child_counts() -> None:
    holding = "held = b'x' * (200 << 20); import time; time.sleep(0.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holding!r}])"
    done = run([sys.executable, "-c", parent])
    assert done.code == 0
    assert 200 * MIB < done.peak.held_bytes < 400 * MIB


def test_pages_of_a_mapped_file_are_counted_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (200 * MIB))
    reading = (
        "import mmap, sys, time; file = open(sys.argv[1], 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(mapped[each] for each in range(0, len(mapped), 4096)); time.sleep(0.5)"
    )
    peak = run([sys.executable, "-c", reading, str(path)]).peak
    assert peak.resident_bytes > 200 * MIB
    assert peak.held_bytes < 100 * MIB


def test_each_phase_has_its_own_peak() -> None:
    program = """
import time
held = b'x' * (200 << 20)
time.sleep(0.4)
del held
print('✓ reading /some/where (0.4 s)')
time.sleep(0.4)
print('✓ publishing (0.4 s)')
"""
    phases = run([sys.executable, "-c", program]).phases
    assert list(phases) == ["reading", "publishing"]
    assert phases["publishing"].peak_bytes < 200 * MIB < phases["reading"].peak_bytes
    assert phases["reading"].seconds == 0.4


def test_failed_command_keeps_its_output() -> None:
    done = run([sys.executable, "-c", "print('error: too large'); raise SystemExit(1)"])
    assert (done.code, done.output) == (1, "error: too large\n")


def test_new_results_replace_those_of_the_same_setting(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    others = [replace(_MEASURED, precision="int8"), replace(_MEASURED, name="opus-mt-74m")]
    merge_rows(path, {"cores": 2}, [_MEASURED, *others])
    content = merge_rows(path, {"cores": 2}, [replace(_MEASURED, seconds=50.0)])
    assert content["rows"] == read(path)
    keys = [(row["name"], row["precision"], row["seconds"]) for row in read(path)]
    assert keys == [
        ("opus-mt-74m", "fp32", 60.0),
        ("gpt2-124m", "fp32", 50.0),
        ("gpt2-124m", "int8", 60.0),
    ]


def test_table_adds_the_graphs_and_names_what_failed(tmp_path: Path) -> None:
    failed = replace(_MEASURED, precision="int8", error="error: too large")
    merge_rows(tmp_path / "r.json", {}, [_MEASURED, failed])
    first, second = table(read(tmp_path / "r.json")).splitlines()[2:]
    assert first == (
        "| gpt2-124m | 124 M | fp32 | 60 | 90 | 3 | 22 | – | – | 2.0 | 1.50 | 1.00 | 1.5 |"
    )
    assert "error: too large" in second
    assert second.count("|") == len(COLUMNS) + 1


def test_table_is_printed_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    merge_rows(tmp_path / "r.json", {}, [_MEASURED])
    main(["--table", "--output", str(tmp_path / "r.json")])
    assert capsys.readouterr().out.startswith("| checkpoint |")


def test_bytes_of_any_text_are_tokens_of_qwens_shape(tmp_path: Path) -> None:
    """A table of 2000 rows; ends are where Qwen2 has them, from the end of the table."""
    from transformers import AutoTokenizer, Qwen2Tokenizer

    from benchmarks.full_size.shapes import _FILES

    size = 2000
    for kind in SHAPES["qwen2.5-0.5b"].files:
        _FILES[kind](tmp_path, size)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, Qwen2Tokenizer)
    first, last = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert (size - first, size - last) == (151_936 - 151_643, 151_936 - 151_645)
    text = "Naïve 東京 🙂 123\n don't!!"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())  # the pair of the first byte is joined
    assert tokenizer.decode(tokenizer.apply_chat_template([{"content": "a"}])["input_ids"]) == "a "


@pytest.mark.full
def test_small_shape_is_exported_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.full_size import measure, shapes

    fields = SHAPES["gpt2-124m"].fields | {"n_layer": 1, "n_embd": 16, "n_head": 2}
    tiny = replace(SHAPES["gpt2-124m"], fields=fields | {"vocab_size": 40, "n_positions": 32})
    monkeypatch.setitem(SHAPES, "gpt2-124m", tiny)
    ended = measure.run

    def make_here(command: list[str]) -> measure.Done:
        """The process that makes the checkpoint would not see the tiny shape."""
        if "--make" not in command:
            return ended(command)
        count = shapes.make_checkpoint("gpt2-124m", Path(command[-1]))
        return measure.Done(f"{count}\n", 0, measure.Memory(), 0.0, {})

    monkeypatch.setattr(measure, "run", make_here)
    found = measure.measure(measure.Setting("gpt2-124m", "int8"), tmp_path)
    assert found.error is None
    assert {"reading", "exporting step to ONNX", "lowering to int8"} <= set(found.phases)
    assert found.bundle_bytes > 4 * 40 * 16
