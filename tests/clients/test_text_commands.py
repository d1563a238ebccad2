"""Commands and client methods of the tasks that return labels, tokens and ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.fake_gateway import fake_gateway
from triptych import Client, InvalidArgument, cli

Run = Callable[..., str]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_gateway() as address:
        yield address


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command that succeeds; what it printed."""
    monkeypatch.setenv("TRIPTYCH_URL", url)
    monkeypatch.delenv("TRIPTYCH_API_KEY", raising=False)

    def run(*arguments: object) -> str:
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

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


@pytest.mark.parametrize(
    "arguments", [["a", "--pair", "b => c"], [], ["--pair", "a"], ["--pair", "a => "]]
)
def test_classify_refuses_other_combinations(
    arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["classify", *arguments, "--url", url]) != 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "--pair" in captured.err


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


def test_tag_writes_json_lines(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("Ada\nGrace\n")
    run("tag", "-f", source, "-o", target)
    texts = [json.loads(line)["tokens"][0]["text"] for line in target.read_text().splitlines()]
    assert texts == ["Ada", "Grace"]


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
    ],
)
def test_wrong_arguments_are_refused_before_they_are_sent(
    call: Callable[[Client], object], url: str
) -> None:
    with Client(url) as client, pytest.raises(InvalidArgument):
        call(client)


def test_what_was_cut_is_a_line_on_stderr(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = ["a b", "a b c d"]
    output = tmp_path / "vectors.npy"
    for more in ([], ["--output", str(output)]):
        assert cli.run(["embed", *texts, "--truncate", "--url", url, *more]) == 0
        out, err = capfd.readouterr()
        assert err == "triptych: item 2: 4 characters were cut off\n"
        assert bool(out) == (not more)
    assert output.exists()
    assert cli.run(["embed", *texts, "--truncate", "--json", "--url", url]) == 0
    out, err = capfd.readouterr()
    assert '"truncated_characters": 4' in out
    assert not err
    assert cli.run(["embed", *texts, "--truncation-direction", "left", "--url", url]) == 0
    assert not capfd.readouterr().err
