"""Every snippet of the documentation runs against the examples, and prints what it says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.docs.test_snippets import Session, Snippet, pages, snippets
from tests.e2e.conftest import Stack
from tests.e2e.workload import triton_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGES = list(pages(ROOT))
NAMES = [str(page.relative_to(ROOT / "docs")) for page in PAGES]


@contextmanager
def session(stack: Stack, folder: Path) -> Iterator[Session]:
    """Runs snippets of a page beside the example pictures."""
    for picture in (ROOT / "examples" / "demo" / "pictures").glob("scene-*"):
        shutil.copy(picture, folder)
    replaced = {
        "localhost:8080": stack.url.removeprefix("http://"),
        "127.0.0.1:8080": stack.url.removeprefix("http://"),
        "localhost:8081": stack.grpc_address,
    }
    with Session(folder, replaced, {"TRIPTYCH_URL": stack.url}) as running:
        yield running


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_snippets_print_what_the_page_shows(page: Path, stack: Stack, tmp_path: Path) -> None:
    with session(stack, tmp_path) as running:
        for snippet in snippets(page.read_text(encoding="utf-8")):
            running.check(snippet)


PLANTED = {
    "curl": ('"texts"', '"textos"'),
    "client": ("client.translate(", "client.translation("),
    "command": ("--source es", "--from es"),
    "other client": ("InferenceClient(", "InferenceClient(endpoint="),
    "answer": ("The world is not enough.", "The world is enough."),
    "number": ("-0.7921", "-0.7931"),
}
"""What is changed in the page on translation."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str, stack: Stack, tmp_path: Path) -> None:
    page = ROOT / "docs" / "endpoints" / "translate.md"
    text = page.read_text(encoding="utf-8")
    assert PLANTED[name][0] in text
    changed = snippets(text.replace(*PLANTED[name], 1))
    (at,) = [i for i, (a, b) in enumerate(zip(snippets(text), changed, strict=True)) if a != b]
    with session(stack, tmp_path) as running, pytest.raises(AssertionError, match="line "):
        _run(running, changed, at)


def _run(running: Session, found: list[Snippet], at: int) -> None:
    """Runs the blocks of Python up to this one, which are one program, or one of bash."""
    for snippet in found[:at]:
        if found[at].language == snippet.language == "python":
            running.check(snippet)
    running.check(found[at])


PAGE = Path(__file__).parents[2] / "model_repository" / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_page_is_one_program_that_runs(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = psutil.Process(triton_of(stack)).cmdline()
    (port,) = re.findall(r"--grpc-port=(\d+)", " ".join(arguments))
    program = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    for written, actual in (
        ("127.0.0.1:8001", f"127.0.0.1:{port}"),
        ("model_repository/", f"{stack.repository}/"),
    ):
        assert written in program
        program = program.replace(written, actual)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    assert "The world is not enough." in printed
    assert "invalid_request: num_beams" in printed
    assert "L'accord a été signé" in printed
    assert "[b'length']" in printed
    assert "['positive', 'negative']" in printed
