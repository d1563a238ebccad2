"""Folders that parallel test workers share are made once, and only whole."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.shared_folders import made_once


def test_one_of_several_makes_the_folder_and_the_others_wait(tmp_path: Path) -> None:
    makers: list[int] = []

    def make(folder: Path) -> None:
        makers.append(threading.get_ident())
        time.sleep(0.05)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: made_once(tmp_path / "shared", make), range(4)))
    assert len(makers) == 1
    assert {folder / "file" for folder in made} == {tmp_path / "shared" / "file"}
    assert (tmp_path / "shared" / "file").read_text() == "whole"


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_once(tmp_path / "shared", fail)
    assert not (tmp_path / "shared").exists()
    made_once(tmp_path / "shared", lambda folder: (folder / "whole").write_text("whole"))
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["whole"]
