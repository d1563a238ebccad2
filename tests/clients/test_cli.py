"""The command line: results on stdout, one line on stderr for whatever goes wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from tests.clients.fake_gateway import fake_gateway
from tests.inference.tiny_models import image_file
from triptych import Client, InvalidArgument, __version__, cli
from triptych.commands.lazy_commands import LAZY_COMMANDS, SERVE
from triptych.documents import TYPES
from triptych.system_errors import explain

COMMANDS = (
    "export verify catalog serve triton gateway models translate caption zero-shot detect segment "
    "generate"
).split()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_gateway() as address:
        yield address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TRIPTYCH_URL", url)
    monkeypatch.delenv("TRIPTYCH_API_KEY", raising=False)


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def triptych(capfd: pytest.CaptureFixture[str]) -> Iterator[object]:
    def run(*arguments: object) -> Result:
        code = cli.run([str(argument) for argument in arguments])
        sys.stdout.flush()
        return Result(code, *capfd.readouterr())

    return run


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.code != 0
    assert result.err.startswith("triptych: ")
    assert result.err.count("\n") == 1, result.err
    for part in parts:
        assert part in result.err


WHOLE_OR_STREAMED = pytest.mark.parametrize("flags", [(), ("--stream",)])


@WHOLE_OR_STREAMED
@pytest.mark.parametrize("command", [("translate", "-s", "es"), ("generate",)])
def test_texts_are_printed_in_order(triptych, command: tuple, flags: tuple) -> None:
    result = triptych(*command, "ab", "cd", *flags)  # the gateway streams the last first
    assert (result.code, result.out, result.err) == (0, "AB\nCD\n", "")


@WHOLE_OR_STREAMED
def test_what_succeeded_is_printed_beside_the_failure_of_the_rest(triptych, flags: tuple) -> None:
    result = triptych("translate", "a", "bad", "c", *flags)
    assert result.out == "A\nC\n"
    assert_one_line(result, "item 2: too long")


@WHOLE_OR_STREAMED
def test_what_the_limit_of_tokens_cut_is_named_beside_the_results(triptych, flags: tuple) -> None:
    result = triptych("translate", "a", "cut", *flags)
    assert (result.code, result.out) == (0, "A\nCUT\n")
    assert result.err == "triptych: item 2: the limit of tokens cut it\n"


def test_lines_that_the_limit_of_tokens_cut_are_named(triptych, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n\ncut\nb\n")
    result = triptych("translate", "-f", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert (result.code, (tmp_path / "out.txt").read_text()) == (0, "A\n\nCUT\nB\n")
    assert result.err == "triptych: line 3: the limit of tokens cut it\n"


def test_translate_as_json_prints_the_response(triptych) -> None:
    result = triptych("translate", "a", "--json")
    assert json.loads(result.out)["data"] == [{"index": 0, "text": "A", "score": -1.0}]


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_a_text_is_read_from_stdin(triptych, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hola\n"))
    assert triptych(command, "-").out == "HOLA\n"


def test_translate_files_and_resumes(triptych, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n\nb\nc\n")
    target.write_text("KEPT\n\nto")
    result = triptych("translate", "-f", source, "-o", target, "--batch-size", 1)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert target.read_text() == "KEPT\n\nB\nC\n"


def test_translate_lines_of_stdin_to_stdout(triptych, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\nb\n")))
    result = triptych("translate", "-f", "-")
    assert (result.code, result.out) == (0, "A\n\nB\n")


def test_translate_reports_lines_that_failed(triptych, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nbad\n")
    assert_one_line(triptych("translate", "-f", source, "-o", target), "line 2: too long")
    result = triptych("translate", "-f", source, "-o", target, "--keep-going")
    assert_one_line(result, "line 2: too long")
    assert target.read_text() == "A\n\n"


@WHOLE_OR_STREAMED
def test_caption_prints_names_when_there_are_several(
    triptych, tmp_path: Path, flags: tuple
) -> None:
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    first.write_bytes(b"12")
    second.write_bytes(b"123")
    assert triptych("caption", first, *flags).out == "2 bytes\n"
    result = triptych("caption", first, second, *flags)
    assert result.out == f"{first}\t2 bytes\n{second}\t3 bytes\n"


def test_caption_reads_an_image_from_stdin(triptych, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00\xff\x01")))
    assert triptych("caption", "-").out == "3 bytes\n"


def test_zero_shot_takes_labels_from_flags_and_files(triptych, tmp_path: Path) -> None:
    image, labels = tmp_path / "a.png", tmp_path / "labels.txt"
    image.write_bytes(b"1")
    labels.write_text("a horse\n\n a cow \n")
    result = triptych("zero-shot", image, "-l", "a boat", "--labels-file", labels)
    assert [line.split("%  ")[1] for line in result.out.splitlines()] == [
        "a boat",
        "a horse",
        "a cow",
    ]
    assert result.out.startswith(" 50.00%")
    assert len(triptych("zero-shot", image, "-l", "a", "-l", "b", "--top", 1).out.split("\n")) == 2


def test_lists_of_frames_have_the_names_of_their_first_frames(triptych, tmp_path: Path) -> None:
    frames = [tmp_path / f"{number}.png" for number in range(5)]
    for frame in frames:
        frame.write_bytes(b"1")
    counts = ["--frame-count", 3, "--frame-count", 2]
    lines = triptych("zero-shot", *frames, "-l", "a boat", *counts).out.splitlines()
    assert lines[::2] == [str(frames[0]), str(frames[3])]


def test_detect_prints_boxes_or_draws_them(
    triptych, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, drawn = image_file("red"), tmp_path / "boxes.png"
    image = tmp_path / "a.png"
    image.write_bytes(picture)
    line = " 50.00%      4.0     3.0     8.0     6.0  a cat\n"
    assert triptych("detect", image, "-l", "a cat").out == line
    assert triptych("detect", image).out == line.replace("a cat", "anything")
    assert triptych("detect", image, "-l", "a cat", "-o", drawn).out == ""
    assert drawn.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(picture)))
    triptych("detect", "-", "-l", "a cat", "-o", tmp_path / "stdin.png")
    assert (tmp_path / "stdin.png").read_bytes() == drawn.read_bytes()
    assert_one_line(
        triptych("detect", image, image, "-l", "a", "-o", drawn), "of one image, not of 2"
    )


def test_segment_prints_probabilities_or_writes_a_mask_of_the_pictures_size(
    triptych, tmp_path: Path
) -> None:
    image, mask = tmp_path / "a.png", tmp_path / "mask.png"
    image.write_bytes(image_file("red"))
    lines = " 50.00%   50.00%  a cat\n 50.00%   50.00%  a dog\n"
    assert triptych("segment", image, "-l", "a cat", "-l", "a dog").out == lines
    assert triptych("segment", image, "-l", "a cat", "-o", mask).out == ""
    with Image.open(mask) as opened:
        assert (opened.mode, opened.size) == ("L", (8, 6))
        assert opened.getextrema() == (128, 128)
    refused = triptych("segment", image, "-l", "a", "-l", "b", "-o", mask)
    assert_one_line(refused, "one label of one image, not 2")


def test_generate_sends_instruction_and_examples(triptych) -> None:
    result = triptych("generate", "c", "-i", "Do: ", "-e", "x => y", "-e", "z =>  w")
    assert result.out == "Do: x=y z= w C\n"


def test_generate_prints_alternatives_below_the_best(triptych) -> None:
    result = triptych("generate", "a", "-n", 2)
    assert result.out == "A\n   -0.5000  one\n            two\n"


def test_generate_as_json_prints_the_response(triptych) -> None:
    item = {"index": 0, "text": "A", "finish_reason": "stop"}
    assert json.loads(triptych("generate", "a", "--json").out)["data"] == [item]


class TestStream:
    def test_as_json_prints_chunks_as_they_arrive(self, triptych) -> None:
        result = triptych("generate", "a", "b", "--stream", "--json")
        chunks = [json.loads(line) for line in result.out.splitlines()]
        assert [chunk["index"] for chunk in chunks] == [1, 1, 0, 0]
        assert chunks[1] == {"index": 1, "text": "", "finish_reason": "stop"}

    def test_that_breaks_off_keeps_its_text_and_fails(self, triptych) -> None:
        result = triptych("generate", "break", "--stream")
        assert result.out == "BREAK\n"
        assert_one_line(result, "gone (request r-1)")

    def test_empty_text_is_an_empty_line(self, triptych) -> None:
        assert triptych("generate", "a", "", "b", "--stream").out == "A\n\nB\n"


def test_models_is_a_table(triptych) -> None:
    lines = triptych("models").out.splitlines()
    assert lines[0].split() == ["model", "version", "tasks", "languages", "precision"]
    assert lines[1].split() == ["opus", "*", "2", "translate", "es-en", "fp32"]
    assert json.loads(triptych("models", "--json").out)["data"][0]["id"] == "opus"


def test_the_version_is_printed(triptych) -> None:
    result = triptych("--version")
    assert result.code == 0
    assert result.out == f"triptych {__version__}\n"


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("export", "gateway")]
)
def test_help_has_examples(triptych, command: str) -> None:
    result = triptych(command, "--help")
    assert result.code == 0
    assert result.out.count(f"triptych {command}") >= 2


@pytest.mark.parametrize("name", [n for n, each in LAZY_COMMANDS.items() if each.panel == SERVE])
def test_summary_is_the_first_line_of_the_commands_own_help(name: str) -> None:
    command = LAZY_COMMANDS[name]
    assert command.load(name).help.splitlines()[0] == command.summary


def test_help_groups_the_commands(triptych) -> None:
    _, *groups = re.split(r"^(?=\S.*:$)", triptych("--help").out, flags=re.MULTILINE)
    found = {
        group.splitlines()[0]: set(re.findall(r"^  ([\w-]+)", group, flags=re.MULTILINE))
        for group in groups[1:]
    }
    assert list(found) == [
        *("Use a gateway:", "Serve models:", "Export checkpoints:", "Learn: train and compare:")
    ]
    assert set(COMMANDS) <= set().union(*found.values())
    assert {"translate", "models", "glossary"} <= found["Use a gateway:"]
    assert found["Serve models:"] == {
        "serve",
        "triton",
        "gateway",
        "batch",
        "plan",
        "reload",
        "rollback",
        "key",
        "push",
        "pull",
    }
    assert {"export", "verify", "catalog"} <= found["Export checkpoints:"]
    assert found["Learn: train and compare:"] >= {"train", "compare"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["translate"], "give either TEXT or --file (see triptych translate --help)"),
        (["translate", "a", "-f", "in.txt"], "give either TEXT or --file"),
        (["translate", "a", "-o", "out.txt"], "--output needs --file"),
        (["translate", "-f", "/nowhere/in.txt"], "/nowhere/in.txt: No such file"),
        (["translate", "a", "--num-beams", "99"], "Invalid value for '--num-beams'"),
        (["translate", "a", "--num-beams", "x"], "--num-beams"),
        (["translate", "a", "--model", "unknown"], "no model of that name (request r-1)"),
        (["translate", "a", "--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["translate", "a", "--url", "grpc://127.0.0.1:1"], "cannot reach 127.0.0.1:1"),
        (["translate", "a", "--url", "nowhere"], "not a URL"),
        (["translate", "a", "--url", "http://[::"], "not a URL"),
        (["translate", "a", "--stream", "--num-beams", "2"], "--num-beams and --stream exclude"),
        (["translate", "-f", "a.txt", "--stream"], "--file and --stream exclude"),
        (["caption", "a.png", "--stream", "--alternatives", "2"], "--alternatives and --stream"),
        (["generate"], "give either PROMPT or --file"),
        (["generate", "a", "-n", "2", "--stream"], "-n and --stream exclude each other"),
        (["generate", "a", "--example", "b"], "--example is"),
        (["generate", "a", "--example", " => b"], "--example is"),
        (["generate", "a", "--temperature", "-1"], "--temperature"),
        (["generate", "a", "--top-p", "0"], "top_p"),
        (["generate", "a", "--stop", ""], "stop.0"),
        (["generate", "a", "--model", "unknown", "--stream"], "no model of that name"),
        (["generate", "a", "--stream", "--url", "http://127.0.0.1:1"], "cannot reach"),
        (["generate", "a", "--stream", "--url", "grpc://127.0.0.1:1"], "cannot reach"),
        (["caption"], "Missing argument"),
        (["caption", "/nowhere/a.png"], "cannot read /nowhere/a.png"),
        (["zero-shot", "a.png"], "no labels"),
        (["zero-shot", "a.png", "--labels-file", "/nowhere"], "/nowhere"),
        (["models", "--nope"], "--nope"),
        (["nope"], "No such command 'nope'"),
        (["serve", "--repository", "/nowhere"], "no such folder: /nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_clear_line(triptych, arguments: list[str], part: str) -> None:
    assert_one_line(triptych(*arguments), part)


def test_an_unexpected_failure_is_one_line_too(triptych, monkeypatch) -> None:
    from triptych.commands import options

    monkeypatch.setattr(options, "DEFAULT_URL", "x")
    monkeypatch.setattr("triptych.Client", None)
    assert_one_line(triptych("models"), "internal error: TypeError")


def test_ctrl_c_is_130_and_silent(triptych, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "read", interrupted)
    result = triptych("translate", "-")
    assert result.code == 130
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("export", "export.pipeline.cli", "export"),
        ("triton", "serving.commands.triton", "serve-cpu"),
    ],
)
def test_a_missing_extra_is_named(
    triptych, monkeypatch: pytest.MonkeyPatch, command: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert_one_line(triptych(command), f"pip install 'triptych[{extra}]'")


def test_port_in_use_is_an_error_before_anything_starts(triptych, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = triptych("serve", "--repository", tmp_path, "--http-port", port)
    assert_one_line(result, f"cannot listen on 127.0.0.1:{port} for http:", "in use")


def test_closed_standard_streams_are_opened() -> None:
    """A socket of the gateway had number 1."""
    child = "import os; [os.fstat(number) for number in (0, 1, 2)]"
    program = (
        "import subprocess, sys; from triptych import cli; "
        f"cli.run = lambda _: subprocess.call([sys.executable, '-c', {child!r}]); cli.main()"
    )
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
        assert subprocess.run(command, timeout=60, check=False).returncode == 0, closed


def test_open_standard_streams_stay_as_they_are() -> None:
    before = [os.fstat(number).st_ino for number in range(3)]
    descriptors = set(Path("/proc/self/fd").iterdir())
    cli.open_standard_streams()
    assert [os.fstat(number).st_ino for number in range(3)] == before
    assert set(Path("/proc/self/fd").iterdir()) == descriptors


def test_error_of_the_system_names_file_or_folder_and_step(tmp_path: Path) -> None:
    named = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path))
    assert explain(named) == f"{tmp_path}: No such file or directory"
    full = OSError(errno.ENOSPC, "No space left on device")
    full.add_note("exporting step to ONNX")
    assert explain(full, tmp_path) == (
        f"{tmp_path}: No space left on device (in: exporting step to ONNX)"
    )
    assert explain(ValueError("else")) == "else"


def test_step_of_an_error_without_a_note_is_our_innermost_function(
    triptych, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("triptych.Client", fail)
    result = triptych("models")
    assert_one_line(result, "triptych: Invalid argument (in: triptych.commands.")


Run = Callable[..., str]


@pytest.fixture
def run(triptych) -> Run:
    """Runs a command that succeeds; what it printed."""

    def run(*arguments: object) -> str:
        result = triptych(*arguments)
        assert result.code == 0, result.err
        return result.out

    return run


def test_classify_prints_scores_and_labels(run: Run) -> None:
    lines = run("classify", "a", "b", "-k", 3, "--stride", 4).splitlines()
    assert lines[0] == '  0.5000  "a"'
    assert "'top_k': 3" in lines[1]
    assert "'stride': 4" in lines[1]
    assert lines[2:4] == ["", '  0.5000  "b"']


def test_classify_takes_pairs(run: Run) -> None:
    out = run("classify", "--pair", "a => b", "--pair", "c => d")
    assert out.splitlines()[0] == '  0.5000  {"first": "a", "second": "b"}'
    assert out.count("second") == 2


def test_classify_prints_names_of_several_images(run: Run, tmp_path: Path) -> None:
    names = [tmp_path / "a.png", tmp_path / "b.png"]
    for name in names:
        name.write_bytes(b"12")
    out = run("classify", "--images", names[0], "--images", names[1], "--return-attention")
    assert [line for line in out.splitlines() if line.endswith(".png")] == [str(n) for n in names]


def test_classify_takes_an_image_with_texts(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"12")
    lines = run("classify", "how many?", "where?", "--image", picture).splitlines()
    assert [line for line in lines if line.endswith("?")] == ["how many?", "where?"]
    assert "'images': ['MTI=']" in lines[2]
    lines = run("classify", "how many?", "--image", picture, "--image", picture).splitlines()
    assert lines.count(str(picture)) == 2
    assert "'texts': ['how many?']" in lines[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "--pair", "b => c"], [], ["--pair", "a"], ["--pair", "a => "],
        ["--pair", "a => b", "--image", "c.png"], ["--file", "a.txt", "--image", "c.png"],
    ],
)  # fmt: skip
def test_classify_refuses_other_combinations(triptych, arguments: list[str]) -> None:
    result = triptych("classify", *arguments)
    assert result.out == ""
    assert_one_line(result, "--pair")


def test_fill_mask_prints_tokens_and_texts(run: Run) -> None:
    out = run("fill-mask", "a [MASK] b [MASK]", "[MASK]", "--target", "x")
    line = " 75.00%  red           "
    assert out.split("\n") == [f"{line}a red b red", "", f"{line}a red b red", "", f"{line}red", ""]


def test_tag_prints_places_and_labels(run: Run) -> None:
    out = run("tag", "Ada wrote", "Grace", "-a", "simple", "--return-outside")
    assert out.split("\n") == [
        "      0-3   50.00%  PER       Ada",
        "",
        "      0-5   50.00%  PER       Grace",
        "",
    ]


def test_rerank_prints_documents_best_first(run: Run, tmp_path: Path) -> None:
    documents = tmp_path / "documents.txt"
    documents.write_text("a\nb\n")
    out = run("rerank", "q", "--documents-file", documents, "-n", 2, "--return-documents")
    assert out.split("\n") == ["  1.0000  b", "  0.0000  a", "  failed  document 10: too long", ""]
    assert run("rerank", "q", "-d", "a", "-d", "b").startswith("  1.0000  document 2\n")


def test_answer_prints_places_and_texts(run: Run, tmp_path: Path) -> None:
    passages = tmp_path / "passages.txt"
    passages.write_text("Ada wrote\nGrace found\n")
    out = run("answer", "who?", "--passages-file", passages, "-n", 2, "--null-threshold", 0)
    assert out.split("\n") == [
        "  0.5000        1:0-3  Ada",
        "  0.5000        2:0-5  Grace",
        "  0.2500    no answer",
        "",
    ]
    assert run("answer", "who?", "-p", "Ada", "-p", "Grace") == "  0.5000        1:0-3  Ada\n"
    document = tmp_path / "report.ODT"
    document.write_bytes(b"Ada\nGrace\n")
    sent = f"data:{TYPES['.odt']};base64,QWRhCkdyYWNlCg=="
    assert run("answer", "who?", "--passages-file", document).endswith(f"  {sent}\n")


def test_methods_take_plain_python_values(url: str) -> None:
    with Client(url) as client:
        pairs = client.classify(pairs=[("a", "b"), ("c", "d")]).data
        assert pairs[1].labels is not None
        assert json.loads(pairs[1].labels[0].label) == {"first": "c", "second": "d"}
        assert client.classify("a").data[0].labels is not None
        filled = client.fill_mask("[MASK]", targets="x").data[0].masks
        assert filled[0][0].token_id == 7
        assert client.tag(["Ada"]).data[0].tokens[0].end == 3
        ranked = client.rerank("q", ["a", "b"]).data[0].results
        assert [one.index for one in ranked] == [1, 0, 9]
        (answered,) = client.answer("who?", "Ada wrote", null_threshold=0.0).data
        assert [one.passage for one in answered.answers] == [0, None]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.classify("a", pairs=[("a", "b")]),
        lambda client: client.classify("a", top_k=0),
        lambda client: client.classify(pairs=[("a",)]),
        lambda client: client.tag("a", aggregation="last"),
        lambda client: client.rerank("a", []),
        lambda client: client.answer("a", []),
        lambda client: client.answer("a", "b", null_threshold=float("nan")),
        lambda client: client.embed("a", prompt="x", prompt_name="y"),
        lambda client: client.generate("a", examples=[("a", 1)]),
    ],
)
def test_wrong_arguments_are_refused_before_they_are_sent(
    call: Callable[[Client], object], url: str
) -> None:
    with Client(url) as client, pytest.raises(InvalidArgument):
        call(client)


def test_what_was_cut_is_a_line_on_stderr(triptych, tmp_path: Path) -> None:
    output, cut = tmp_path / "vectors.npy", "triptych: item 2: 4 characters were cut off\n"
    for flags, told in (
        (["--truncate"], cut),
        (["--truncate", "--output", output], cut),
        (["--truncate", "--json"], ""),
        (["--truncation-direction", "left"], ""),
    ):
        result = triptych("embed", "a b", "a b c d", *flags)
        assert (result.code, result.err, bool(result.out)) == (0, told, "--output" not in flags)
        assert ('"truncated_characters": 4' in result.out) == ("--json" in flags)
    assert output.exists()
