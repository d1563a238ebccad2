"""What goes to one worker of `make test`, and what is first."""

from __future__ import annotations

import pytest

from tests.conftest import LONGEST, unit_of


def test_files_of_a_stack_go_to_one_worker(request: pytest.FixtureRequest) -> None:
    names = ("test_streams", "test_answers", "page/test_chat", "page/test_use", "test_versions")
    units = [unit_of(f"tests/e2e/{name}.py::test_it[a::b]", request.config) for name in names]
    assert units == ["stack", "stack", "page", "page", "tests/e2e/test_versions.py"]


def test_units_that_are_first_exist(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    tests = root.glob("tests/**/test_*.py")
    assert set(LONGEST) <= {unit_of(str(path.relative_to(root)), request.config) for path in tests}
