"""Snippets of pages: how they are found, run and compared.

A fenced block in `bash` or `python` is a snippet; a block in `text` or `json` directly after it is
what it prints. Blocks in `python` of one page are one program. The word after the language marks
what is not simply run:

- `before`: code for another server, of a page for those who come from it.
- `setup`: starts or exports something, or needs files of the reader; its commands and flags are
  checked by `tests/docs/test_pages.py`.
- `refused`: must fail; the block after it is the error.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOT_RUN = ("before", "setup")
REFUSED = "refused"
MARKS = ("", *NOT_RUN, REFUSED)
ELISION = "…"
TIMEOUT_S = 60
_BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"…|(?:(?<!\w)-)?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\W\d_]+|\S")
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class Snippet:
    """One block of code.

    Attributes:
        line: Line of the page on which the code begins.
        mark: One of `MARKS`.
        shown: What the page says that it prints, if it says so.
    """

    language: str
    code: str
    line: int
    mark: str = ""
    shown: str | None = None


def snippets(page: str) -> list[Snippet]:
    """The blocks of code of a page, in order."""
    found: list[Snippet] = []
    end = 0
    for block in _BLOCK.finditer(page):
        language, mark, content = block[1], block[2] or "", block[3]
        follows = bool(found) and not page[end : block.start()].strip()
        end = block.end()
        if language in ("bash", "python"):
            line = page.count("\n", 0, block.start()) + 2
            found.append(Snippet(language, content, line, mark))
        elif language in ("text", "json") and follows and found[-1].shown is None:
            last = found.pop()
            found.append(Snippet(last.language, last.code, last.line, last.mark, content))
    return found


def difference(shown: str, printed: str) -> str | None:
    """Where a printed text differs from the one that a page shows; None if it does not.

    White space between words and signs does not count. `…` stands for any text. Numbers equal to
    one unit of the last digit that is shown.
    """
    wanted, found = _TOKEN.findall(shown), _TOKEN.findall(printed)
    reached, place = 0, 0
    start: tuple[int, int] | None = None  # after the last `…`, and what it stands for so far
    while place < len(found) or reached < len(wanted):
        if reached < len(wanted) and wanted[reached] == ELISION:
            reached += 1
            start = (reached, place)
            if reached == len(wanted):
                return None
        elif reached < len(wanted) and place < len(found) and _equal(wanted[reached], found[place]):
            reached, place = reached + 1, place + 1
        elif start is not None and start[1] < len(found):
            start = (start[0], start[1] + 1)
            reached, place = start
        else:
            expected = " ".join(wanted[reached : reached + 5]) or "the end"
            return f"expected {expected!r}, printed {' '.join(found[place : place + 5])!r}"
    return None


def _equal(wanted: str, found: str) -> bool:
    number = _NUMBER.fullmatch(wanted)
    if wanted == found or number is None or _NUMBER.fullmatch(found) is None:
        return wanted == found
    if number[1] is None and number[2] is None:
        return False
    unit = 10.0 ** (int(number[2] or 0) - len(number[1] or ""))
    return abs(float(wanted) - float(found)) <= unit * 1.000001


class Session:
    """Runs the snippets of one page; closes the clients that they open.

    Args:
        folder: Where they run; holds the files that they read.
        replaced: Text of a page → what it stands for here, such as a port.
        environment: More variables, for commands.
    """

    def __init__(
        self, folder: Path, replaced: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._replaced = replaced
        self._environment = environment
        self._names: dict[str, Any] = {"__name__": "page"}
        (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n", encoding="utf-8")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for value in self._names.values():
            if not isinstance(value, type) and callable(close := getattr(value, "close", None)):
                close()

    def check(self, snippet: Snippet) -> None:
        """Runs one snippet.

        Raises:
            AssertionError: it failed, or printed something else than the page shows.
        """
        if snippet.mark in NOT_RUN:
            return
        code = snippet.code
        for written, actual in self._replaced.items():
            code = code.replace(written, actual)
        run = self._bash if snippet.language == "bash" else self._python
        printed = run(code, snippet)
        if snippet.shown is not None:
            for written, actual in self._replaced.items():
                printed = printed.replace(actual, written)
            found = difference(snippet.shown, printed)
            assert found is None, f"line {snippet.line}: {found}\n{printed}"

    def _bash(self, code: str, snippet: Snippet) -> str:
        binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", code],
            cwd=self._folder,
            env={
                **os.environ,
                "PATH": binaries,
                "CURL_HOME": str(self._folder),
                "COLUMNS": "200",
                **self._environment,
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        is_refused = snippet.mark == REFUSED
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == is_refused, f"line {snippet.line}: {output}"
        return done.stdout if done.stdout or not is_refused else done.stderr

    def _python(self, code: str, snippet: Snippet) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.chdir(self._folder):
            try:
                exec(compile(code, f"line {snippet.line}", "exec"), self._names)
            except Exception as error:
                if snippet.mark != REFUSED:
                    raise AssertionError(f"line {snippet.line}: {error!r}") from error
                return f"{output.getvalue()}{type(error).__name__}: {error}"
        assert snippet.mark != REFUSED, f"line {snippet.line}: not refused"
        return output.getvalue()


def pages(root: Path) -> Iterator[Path]:
    """The pages whose snippets are run."""
    docs = root / "docs"
    yield from sorted([*docs.glob("endpoints/*.md"), *docs.glob("coming-from/*.md")])
    yield from (
        docs / f"{name}.md" for name in ("constraints", "huggingface", "open-inference", "openai")
    )


ROOT = Path(__file__).parents[2]
PAGES = list(pages(ROOT))
STARTS = (
    r"(export|for package in|triptych (export|serve|caption|generate|detect|segment|chat)|"
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
    assert snippets(page) == [Snippet("bash", "ls\n", 2, shown="a\n"), Snippet("python", "b\n", 9)]


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
