"""Paths, links, make verbs and commands in the documentation exist."""

import contextlib
import io
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from triptych.cli import run

ROOT = Path(__file__).parents[2]
GLOBS = (
    *("*.md", "docs/**/*.md", "docker/*.md", "benchmarks/**/*.md", "*/README.md"),
    *("examples/*.md", "examples/*/README.md", "tests/*/README.md"),
)
PAGES = sorted(
    {
        path
        for pattern in GLOBS
        for path in ROOT.glob(pattern)
        if not {".venv", ".cache"} & set(path.parts)
    }
)
TOP = (
    r"(?:export|serving|inference|clients|model_repository|tests|docker|benchmarks|docs|examples)/"
)
CITED = re.compile(rf"`({TOP}[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)]+)\)")
VERB = re.compile(r"\bmake ([a-z][a-z0-9-]*)")
COMMAND = re.compile(r"^(?:\$ )?triptych ([a-z-]+)((?: .*)?)$", re.MULTILINE)
ADDED = re.compile(r"title=clients/triptych/tasks/(\w+)\.py")
"""Commands of tasks that a tutorial adds."""
FLAG = re.compile(r"(?<!\S)--[a-z][a-z-]*")

pages = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


@pages
def test_cited_paths_exist(page: Path) -> None:
    cited = set(CITED.findall(page.read_text(encoding="utf-8")))
    missing = [path for path in sorted(cited) if not (ROOT / path).exists()]
    assert [path for path in missing if not _is_ignored(path)] == []


@pages
def test_links_resolve(page: Path) -> None:
    links = {link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link}
    assert [link for link in sorted(links) if not (page.parent / link).exists()] == []


@pages
def test_anchors_are_headings(page: Path) -> None:
    """GitHub makes an anchor of a heading; some anchors are written."""
    anchors = ANCHOR.findall(page.read_text(encoding="utf-8"))
    lost = [
        f"{link}#{anchor}"
        for link, anchor in anchors
        if "://" not in link
        and (target := page.parent / link if link else page).suffix == ".md"
        and anchor not in _anchors(target)
    ]
    assert lost == []


@pages
def test_make_verbs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    code = "\n".join(_code(page.read_text(encoding="utf-8")))
    assert sorted(set(VERB.findall(code)) - known) == []


@pages
def test_commands_and_their_flags_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code, own = "\n".join(_code(text)), set(ADDED.findall(text))
    unknown = [
        f"{command} {flag}"
        for command, rest in COMMAND.findall(code)
        if command not in own
        for flag in FLAG.findall(rest.partition("#")[0])
        if flag not in _help(command, (rest.split() or [""])[0])
    ]
    assert unknown == []


@cache
def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    made = {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@cache
def _help(command: str, below: str) -> str:
    """Of a command, or of the command `below` it where it is a group."""
    text = _printed(command)
    is_group = "COMMAND [ARGS]" in text and not below.startswith("-")
    return _printed(command, below) if is_group else text


@cache
def _printed(*command: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run([*command, "--help"]) == 0
    return output.getvalue()


def _is_ignored(path: str) -> bool:
    """Whether git ignores the path: a file of one machine, or one that a command writes."""
    command = ["git", "check-ignore", "-q", f"{path}/any"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _code(text: str) -> list[str]:
    """Fenced blocks and inline code."""
    pairs = re.findall(r"```[^`\n]*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return [fenced or inline for fenced, inline in pairs]
