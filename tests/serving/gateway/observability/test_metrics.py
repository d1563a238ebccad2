"""The gateway's metrics."""

from __future__ import annotations

from pathlib import Path

from serving.gateway.observability.metrics import Metrics


def test_file_that_a_starting_worker_has_not_filled_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").touch()
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()


def test_file_that_an_ending_worker_has_removed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").symlink_to(tmp_path / "removed")  # listed, and not there
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()
