"""No retired word occurs in code or documentation: metaphors for parts of engine and gateway."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RETIRED = re.compile(
    r"(?<![a-z])(house|hall|farewell|belonging|keeper|lane|spine|seat|sweep|"
    r"nobody|somebody|anybody|everybody|whoever)s?(?![a-z])",
    re.IGNORECASE,
)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
ALLOWED = {
    "benchmarks/figures/style.py": {"spine"},  # what matplotlib calls the border of its axes
    "export/examples/texts/lexicon.py": {"house"},  # a noun of the example world
    # words of the example world
    "export/examples/texts/everyday_sentences.py": {"anybody"},
    "export/examples/texts/everyday_words.py": {"house", "nobody"},
    "export/examples/texts/tagged_clauses.py": {"everybody", "nobody", "somebody"},
    "export/examples/texts/review_templates.py": {"everybody", "nobody"},
    "export/examples/texts/tagged_words.py": {"house"},
    "export/examples/texts/dialogue_topics.py": {"house"},
    "export/examples/demo_encoders.py": {"nobody"},  # a sample sentence
    "export/examples/texts/reviews.py": {"everybody", "nobody"},  # words of the example world
    "README.md": {"nobody"},  # the same
    "tests/docs/test_language.py": None,  # this list
    "tests/export/examples/test_grammar.py": {"house"},  # a phrase of the example world
    "tests/serving/test_repository.py": {"nobody"},  # the name of a user
    "tests/serving/triton/test_unreadable.py": {"nobody"},  # the same
    "tests/serving/documents/samples.py": {"spine"},  # an element of EPUB
    "tests/serving/processing/test_text.py": {"house"},  # a sample sentence
}
"""File → words that it may use; None for all."""


def tracked(*patterns: str) -> Iterator[str]:
    """Python files and pages under version control, without generated protobuf code."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = (path for path in listed.stdout.splitlines() if (ROOT / path).is_file())
    return (path for path in paths if not path.endswith(("_pb2.py", "_pb2_grpc.py")))


def retired(text: str) -> set[str]:
    """The retired words in a text, also those inside names, in lower case."""
    return {found[1].lower() for found in RETIRED.finditer(CAMEL.sub(" ", text))}


def test_retired_words_do_not_occur() -> None:
    found = {
        f"{path}:{number}: {word}"
        for path in tracked("*.py", "*.md")
        if ALLOWED.get(path, ()) is not None
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        for word in retired(line) - set(ALLOWED.get(path) or ())
    }
    assert sorted(found) == []


def test_every_exception_is_used() -> None:
    unused = {
        path: words - retired((ROOT / path).read_text(encoding="utf-8"))
        for path, words in ALLOWED.items()
        if words is not None
    }
    assert not any(unused.values()), unused


def test_words_are_found_inside_names() -> None:
    text = "class HallKeeper: test_spine = 1; _house_routes; HOUSES; whosever; shallow; unseated"
    assert retired(text) == {"hall", "keeper", "spine", "house"}
