"""Every decision that code or a page cites exists, and decisions and modules name each other."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
FILES = sorted(FOLDER.glob("d*.md"))
CITED = re.compile(r"\bD(\d{1,3})\b")
HEADING = re.compile(r"# D(\d+) \S.*")
MOST_DECISIONS = 30
MOST_WORDS = 300
"""Of a decision: about a screen."""

decisions = pytest.mark.parametrize("file", FILES, ids=[file.stem[:4] for file in FILES])


def number(file: Path) -> int:
    found = re.match(r"d(\d+)-", file.name)
    assert found, f"{file.name}: the name begins with the number (d07-…)"
    return int(found[1])


def where(file: Path) -> list[str]:
    """Files and folders that implement a decision."""
    section = file.read_text(encoding="utf-8").partition("\n## Where\n")[2]
    return re.findall(r"^- `([^`]+)`", section, re.MULTILINE)


@cache
def citations() -> dict[str, set[int]]:
    """Python file or page → numbers that it cites."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cited = {
        path: {int(found) for found in CITED.findall((ROOT / path).read_text(encoding="utf-8"))}
        for path in listed.stdout.splitlines()
        if (ROOT / path).is_file() and ROOT / path != Path(__file__)
    }
    return {path: numbers for path, numbers in cited.items() if numbers}


def test_numbers_are_unique() -> None:
    numbers = [number(file) for file in FILES]
    assert len(set(numbers)) == len(numbers)


def test_decisions_are_few_and_short() -> None:
    """A further decision replaces another, or joins the one of its subject."""
    words = {file.name: len(file.read_text(encoding="utf-8").split()) for file in FILES}
    print(f"{len(words)} decisions, {sum(words.values())} words")
    assert len(words) <= MOST_DECISIONS
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}


@decisions
def test_file_has_its_number_a_title_and_a_decision(file: Path) -> None:
    first, _, rest = file.read_text(encoding="utf-8").partition("\n")
    heading = HEADING.fullmatch(first)
    assert heading
    assert int(heading[1]) == number(file)
    assert rest.partition("\n## Decision\n\n")[2].strip()


def test_index_has_every_title() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- <a id=\"d(\d+)\"></a>\[D(\d+)\]\((\S+)\) (.+)$", index, re.MULTILINE)
    expected = []
    for file in FILES:
        title = file.read_text(encoding="utf-8").partition("\n")[0].split(" ", 2)[2]
        expected.append((*[str(number(file))] * 2, file.name, title))
    assert sorted(listed) == sorted(expected)


def test_cited_decisions_exist() -> None:
    known = {number(file) for file in FILES}
    missing = {path: numbers - known for path, numbers in citations().items()}
    assert {path: numbers for path, numbers in missing.items() if numbers} == {}


@decisions
def test_modules_of_a_decision_exist_and_cite_it(file: Path) -> None:
    cited = citations()
    for path in where(file):
        assert (ROOT / path).exists(), path
        if path.endswith(".py"):
            assert number(file) in cited.get(path, set()), f"{path} does not cite D{number(file)}"


def test_decisions_list_the_modules_that_cite_them() -> None:
    listed = {number(file): where(file) for file in FILES}
    unlisted = [
        f"{path} cites D{cited}, whose file does not list it under Where"
        for path, numbers in citations().items()
        if path.endswith(".py")
        for cited in sorted(numbers)
        if not any(path == place or path.startswith(f"{place}/") for place in listed[cited])
    ]
    assert unlisted == []
