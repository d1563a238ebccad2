"""Snippets of pages: how they are found, and when what they print differs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import MARKS, Session, Snippet, difference, pages, snippets

ROOT = Path(__file__).parents[2]
PAGES = list(pages(ROOT))
STARTS = (
    r"(export|triptych (export|serve|caption|generate|detect|segment|chat)|"
    r"curl localhost:8080/v1/(generate|detect|segment)|"
    r"from (triptych|huggingface_hub) import|with \w*Client\(|\s|$)"
)
"""Beginnings of lines that set something up, or need files of the reader."""

every_page = pytest.mark.parametrize("page", PAGES, ids=[p.stem for p in PAGES])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ('{"a": [1, 2]}', '{"a":[1,2]}'),
        ("score 0.53", "score 0.5307945"),
        ("score -0.7921", "score -0.79207"),
        ("9.3e-05", "9.347e-05"),
        ("[0.2, …]", "[0.21, 3, 4]"),
        ("a … d … e", "a b c d d e"),
        ("…", ""),
        ("868-6341", "868-6341"),
    ],
)
def test_equal_texts(shown: str, printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ('{"a": [1, 2]}', '{"a":[1,3]}'),
        ('{"a": 1}', '{"b":1}'),
        ("score 0.53", "score 0.57"),
        ("score 0.53", "score nan"),
        ("12 tables", "13 tables"),
        ("one", "one two"),
        ("one two", "one"),
        ("one …", "two"),
        ("a … d", "a b c"),
        ("ab", "abc"),
    ],
)
def test_different_texts(shown: str, printed: str) -> None:
    assert difference(shown, printed) is not None


def test_output_is_the_block_directly_after() -> None:
    page = "```bash\nls\n```\n```text\na\n```\n\n```python\nb\n```\nWords.\n\n```text\nc\n```\n"
    assert snippets(page) == [
        Snippet("bash", "ls\n", 2, shown="a\n"),
        Snippet("python", "b\n", 9),
    ]


@pytest.mark.parametrize(
    ("language", "code", "shown"),
    [
        ("bash", "false; true\n", None),
        ("bash", "echo a\n", "b\n"),
        ("python", "print(1 / 0)\n", None),
        ("python", "print('a')\n", "b\n"),
    ],
)
def test_wrong_snippets_fail(language: str, code: str, shown: str | None, tmp_path: Path) -> None:
    with Session(tmp_path, {}, {}) as session, pytest.raises(AssertionError, match="line 7"):
        session.check(Snippet(language, code, 7, shown=shown))


def test_refused_snippets_must_fail(tmp_path: Path) -> None:
    with Session(tmp_path, {}, {}) as session:
        session.check(Snippet("bash", "echo why >&2; exit 3\n", 1, "refused", "why\n"))
        with pytest.raises(AssertionError):
            session.check(Snippet("bash", "echo why\n", 1, "refused", "why\n"))


@every_page
def test_marks_are_known_and_setup_is_setup(page: Path) -> None:
    for snippet in snippets(page.read_text(encoding="utf-8")):
        assert snippet.mark in MARKS, f"{page.name}, line {snippet.line}"
        if snippet.mark == "setup":
            lines = snippet.code.splitlines()
            assert all(re.match(STARTS, line) for line in lines), f"line {snippet.line}"
        if snippet.mark == "before":
            assert page.parent.name == "coming-from"


@every_page
def test_requests_have_a_language_that_is_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    others = re.findall(r"^```(?!bash|python)\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert not [block for block in others if block.startswith(("curl ", "triptych ", "import "))]


@every_page
def test_whatever_prints_has_its_output(page: Path) -> None:
    """So that answers are compared, not only run."""
    for snippet in snippets(page.read_text(encoding="utf-8")):
        prints = re.search(r"^(curl|triptych) |print\(", snippet.code, re.MULTILINE)
        if snippet.mark in ("", "refused") and prints:
            assert snippet.shown is not None, f"{page.name}, line {snippet.line}"
