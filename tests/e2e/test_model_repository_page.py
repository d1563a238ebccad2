"""The programs of model_repository/README.md, run against the Triton of a running stack."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Stack
from tests.e2e.introspection import triton_of

pytestmark = pytest.mark.integration

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
