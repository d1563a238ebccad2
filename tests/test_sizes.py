"""How large the project is: printed, and kept from growing.

Where a change needs more, the bound is raised in that change, which says why. The task `answer`,
its documents and heads, the formats of translators, translation through a language in between,
pictures with texts in `classify`, recovery of many processes, timm's folders and 37 types of models
took 8,100 lines of product. A detector's regions as `.npz` files, with LXMERT and VisualBERT, which
read them, took 470 more and 420 of tests. The sizes to come to are 78,000 lines of product and
66,000 of tests.
"""

from __future__ import annotations

import io
import token
import tokenize
from dataclasses import dataclass
from pathlib import Path

from tests.programs import run_program

ROOT = Path(__file__).parents[1]
PRODUCT = ("clients", "export", "inference", "serving")
LAYOUT = {token.NEWLINE, token.INDENT, token.DEDENT, token.ENDMARKER}
LAYOUT |= {tokenize.NL, tokenize.COMMENT, tokenize.ENCODING}


@dataclass(frozen=True)
class Size:
    """Files, lines, and tokens of code: no comments, docstrings and layout."""

    files: int
    lines: int
    tokens: int


def code_tokens(content: bytes) -> int:
    """Tokens of a module's code."""
    count, begins = 0, True
    for each in tokenize.tokenize(io.BytesIO(content).readline):
        if each.type in LAYOUT:
            begins |= each.type in (token.NEWLINE, token.INDENT, token.DEDENT, tokenize.ENCODING)
        elif not (begins and each.type == token.STRING):
            count, begins = count + 1, False
    return count


def measure(*folders: str) -> Size:
    """The size of the Python files that the repository holds in these folders."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py")
    paths = [ROOT / path for path in run_program(*command, cwd=ROOT).splitlines()]
    contents = [
        path.read_bytes()
        for path in paths
        if path.is_file() and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]
    lines = sum(content.count(b"\n") for content in contents)
    return Size(len(contents), lines, sum(map(code_tokens, contents)))


def test_tokens_leave_out_what_is_no_code() -> None:
    source = (
        b'"""A module."""\n\n# why\nx = "a"  # text\n\n\ndef f():\n    """What."""\n    return x\n'
    )
    assert code_tokens(source) == len(["x", "=", '"a"', "def", "f", "(", ")", ":", "return", "x"])


def test_the_project_does_not_grow() -> None:
    product, tests, everything = measure(*PRODUCT), measure("tests"), measure()
    print(f"product {product}\ntests {tests}\nall {everything}")
    assert product.lines <= 104_870
    assert tests.lines <= 100_980
    assert everything.files <= 1_253
