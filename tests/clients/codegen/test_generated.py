"""The committed generated files are what `make proto` writes today."""

from inspect import Parameter, signature
from pathlib import Path

import pytest

from codegen.__main__ import ROOT, generate
from triptych import Client


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("generated")
    generate(output)
    return output


def test_generated_files_are_fresh(fresh: Path) -> None:
    names = [path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()]
    assert len(names) >= 8
    stale = [
        str(name)
        for name in names
        if (ROOT / name).read_text(encoding="utf-8") != (fresh / name).read_text(encoding="utf-8")
    ]
    assert stale == [], "run `make proto`"


def test_a_field_that_was_required_once_is_still_taken_by_position() -> None:
    labels = signature(Client.detect).parameters["labels"]
    assert (labels.kind, labels.default) == (Parameter.POSITIONAL_OR_KEYWORD, None)
