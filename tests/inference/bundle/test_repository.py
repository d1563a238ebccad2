"""Reading a repository that is incomplete, unreadable or in use."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.bundle.repository import Repository, VersionLock, removable
from inference.errors import BundleError, SetupError
from tests.inference.tiny_bundles import publish


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    publish(tmp_path, "a", None, "")
    return Repository(tmp_path)


def test_bundles_are_listed_and_further_parts_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, "clip", None, "", parts={"image": "clip", "text": "clip-text"})
    publish(tmp_path, "clip-text", None, "", complete=False)
    publish(tmp_path, "broken", None, "", complete=False)
    repository = Repository(tmp_path)
    for _ in range(3):
        assert repository.names() == ["clip"]
    assert caplog.messages == ["skipped broken: no complete version"]


def test_versions_are_newest_first_and_incomplete_ones_skipped_with_one_line(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (2, 9, 10):
        publish(repository.root, "a", None, "", version=version, complete=version != 9)
    for _ in range(3):
        assert [bundle.version for bundle in repository.complete("a")] == [10, 2, 1]
    assert repository.numbers("a") == [10, 9, 2, 1]
    assert len(caplog.messages) == 1
    assert "skipped a version 9" in caplog.messages[0]
    with pytest.raises(BundleError, match="not a complete bundle"):
        repository.open("a", 9)


def test_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="triptych export"):
        Repository(tmp_path / "nowhere")


def test_bundle_in_a_folder_of_another_name_is_refused_and_named(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    publish(repository.root, "clip", None, "")
    (repository.root / "clip").rename(repository.root / "copied")
    assert repository.problem is None
    assert repository.complete("copied") == []
    assert "the folder is 'copied': rename the folder" in str(repository.problem)
    assert str(repository.problem) in caplog.text
    (repository.root / "copied").rename(repository.root / "clip")
    assert [bundle.version for bundle in repository.complete("clip")] == [1]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


READ_AS_OTHER_USER = """
import logging, os, sys
from pathlib import Path
from inference.bundle.repository import Repository
import inference.bundle.manifest, pydantic
logging.basicConfig(format="%(message)s", stream=sys.stdout)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
repository = Repository(Path(sys.argv[1]))
for _ in range(2):
    for name in repository.names():
        print(name, [bundle.version for bundle in repository.complete(name)])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
@pytest.mark.parametrize(
    ("unreadable", "found", "warned"),
    [
        (".", "", "all bundles: user nobody cannot read"),
        ("a", "b [1]", "a: user nobody cannot read"),
        ("a/2", "a [1]", "a version 2: cannot read"),
        ("a/2/bundle.json", "a [1]", "a version 2: cannot read"),
    ],
)
def test_what_may_not_be_read_is_skipped_with_one_line(
    shared_folder: Path, unreadable: str, found: str, warned: str
) -> None:
    root = shared_folder
    publish(root, "a", None, "")
    publish(root, "a", None, "", version=2)
    publish(root, "b", None, "")
    (root / unreadable).chmod(0)
    read = subprocess.run(
        [sys.executable, "-c", READ_AS_OTHER_USER, str(root)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = read.stdout.splitlines()
    [warning] = [line for line in lines if line.startswith("skipped")]
    assert f"skipped {warned}" in warning
    assert "Permission denied" in warning
    if (root / unreadable).is_dir() and unreadable != "a/2":
        assert "(mode 0000 of root); permit it, as by chmod -R a+rX" in warning
    assert not found or lines.count(found) == 2


def test_repository_that_is_away_is_no_matter_of_rights(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    publish(repository.root, "clip", None, "")
    repository.root.rename(repository.root.with_name("away"))
    assert repository.names() == []
    [warning] = caplog.messages
    assert f"cannot read {repository.root}: No such file or directory; it is tried" in warning
    assert "chmod" not in warning
    repository.root.with_name("away").rename(repository.root)
    assert "clip" in repository.names()
    assert repository.problem is None


def test_held_version_is_not_removable_until_it_is_released(repository: Repository) -> None:
    folder = repository.root / "a" / "1"
    lock = VersionLock()
    for held in (True, False):
        lock.hold({folder} if held else set())
        with removable(folder) as is_removable:
            assert is_removable is not held


def test_version_that_becomes_complete_is_found(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    half = publish(repository.root, "a", None, "", version=2, complete=False)
    assert [bundle.version for bundle in repository.complete("a")] == [1]
    manifest = (repository.root / "a" / "1" / "bundle.json").read_text()
    (half / "bundle.json").write_text(manifest.replace('"version": 1', '"version": 2'))
    with caplog.at_level(logging.WARNING):
        assert [bundle.version for bundle in repository.complete("a")] == [2, 1]
