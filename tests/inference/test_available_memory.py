from pathlib import Path

import psutil
import pytest

from inference import available_memory


def test_a_container_has_what_its_limit_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available_memory, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(available_memory, "_CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert available_memory.available_bytes() == 8192
    for name, text in (("max", "6000"), ("current", "5000"), ("stat", "inactive_file 70\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_memory.available_bytes() == 1070


def test_all_memory_where_the_system_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available_memory, "_MEMORY", tmp_path / "missing")
    assert available_memory.available_bytes() == psutil.virtual_memory().total
