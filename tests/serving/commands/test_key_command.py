"""`triptych key`: what it writes is what the gateway reads."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.gateway.admission.auth import KEY, Keys
from triptych.cli import app

RUN = CliRunner()


def make(file: Path, name: str, *flags: str) -> str:
    done = RUN.invoke(app, ["key", name, "--file", str(file), *flags])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()[0]


def test_keys_are_made_and_accepted(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    alice = make(file, "alice")
    bob = make(file, "bob", "--max-concurrent-requests", "3", "--max-concurrent-pixels", "500")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert alice not in file.read_text()
    keys = Keys(file=file)
    keys.check(alice)
    keys.check(bob)
    found = KEY.get()
    assert (found.name, found.max_concurrent_requests, found.max_concurrent_pixels) == (
        "bob",
        3,
        500,
    )


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "ä", "default", 'a"b'])
def test_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "keys.toml"
    done = RUN.invoke(app, ["key", name, "--file", str(file)])
    assert done.exit_code != 0
    assert not file.exists()


def test_nothing_is_lost_by_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    make(file, "alice")
    before = file.read_text()
    assert RUN.invoke(app, ["key", "alice", "--file", str(file)]).exit_code != 0
    assert file.read_text() == before
    file.write_text("keys = 3")
    assert RUN.invoke(app, ["key", "bob", "--file", str(file)]).exit_code != 0
    assert file.read_text() == "keys = 3"
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]
