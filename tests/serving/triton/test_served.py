"""The record of the served versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.bundle.manifest import Bundle
from inference.bundle.repository import Repository
from serving.triton.served import Choice, Refusal, ServedVersions, read_record
from tests.inference.tiny_bundles import publish


@pytest.fixture
def complete(tmp_path: Path) -> list[Bundle]:
    """Versions 3, 2, 1."""
    for version in (1, 2, 3):
        publish(tmp_path, "a", None, "", version=version)
    return Repository(tmp_path).complete("a")


def order(record: ServedVersions, complete: list[Bundle]) -> list[int]:
    return [bundle.version for bundle in record.in_order("a", complete)]


def test_newest_goes_first_without_a_record(tmp_path: Path, complete: list[Bundle]) -> None:
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [3, 2, 1]


def test_rollback_survives_and_ends_with_the_next_export(
    tmp_path: Path, complete: list[Bundle]
) -> None:
    ServedVersions(tmp_path / "served.json").set("a", Choice(version=1, newest=3))
    again = ServedVersions(tmp_path / "served.json")
    assert order(again, complete) == [1, 3, 2]
    publish(tmp_path, "a", None, "", version=4)
    assert order(again, Repository(tmp_path).complete("a")) == [4, 3, 2, 1]


def test_record_that_cannot_be_written_holds_for_this_process(
    tmp_path: Path, complete: list[Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    record = ServedVersions(tmp_path / "missing" / "served.json")
    for version in (1, 2):
        record.set("a", Choice(version=version, newest=3))
    assert order(record, complete) == [2, 3, 1]
    assert not record.is_persistent
    [message] = caplog.messages
    assert "--state" in message


def test_second_supervisor_leaves_the_record_of_the_first(
    tmp_path: Path, complete: list[Bundle]
) -> None:
    ServedVersions(tmp_path / "served.json").set("a", Choice(version=1, newest=3))
    second = ServedVersions(tmp_path / "served.json")
    second.is_ours = False
    second.set("a", Choice(version=2, newest=3))
    assert order(second, complete) == [2, 3, 1]
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [1, 3, 2]
    second.take_over()
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [2, 3, 1]


@pytest.mark.parametrize("content", ["", "[]", '{"served": {"a": {"version": 0, "newest": 1}}}'])
def test_damaged_record_is_ignored_with_one_line(
    tmp_path: Path, complete: list[Bundle], content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "served.json").write_text(content)
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [3, 2, 1]
    assert len(caplog.messages) == 1


def test_refusals_are_written_beside_the_choices(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    record = ServedVersions(path)
    record.set("a", Choice(version=1, newest=2))
    refusal = Refusal(version=2, reason="b version 2 fails its self-check")
    record.set_refused({"b": refusal})
    found = read_record(path)
    assert (found.served["a"].version, found.refused) == (1, {"b": refusal})
    assert found.self_check
    record.set_refused({})
    assert read_record(path).refused == {}


def test_record_of_a_run_with_the_check_does_not_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    ServedVersions(path).set("a", Choice(version=1, newest=1))
    ServedVersions(path, self_check=False).set_refused({})
    assert not read_record(path).self_check
    assert read_record(path).served
