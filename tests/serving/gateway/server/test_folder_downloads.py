"""Translated files of several workers: each answers for the files of all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from inference.errors import Overloaded, PayloadTooLarge, UnknownRoute
from serving.gateway.dialects.libretranslate.downloads import LIFETIME_S, FolderDownloads


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers(tmp_path: Path, clock: Clock) -> tuple[FolderDownloads, FolderDownloads]:
    one, two = (FolderDownloads(tmp_path, 100, clock) for _ in range(2))
    return one, two


def test_any_worker_answers(workers: tuple[FolderDownloads, FolderDownloads]) -> None:
    one, two = workers
    keys = [one.put("a_en.txt", b"one"), two.put("a_en.txt", b"")]
    for _ in range(2):
        for worker in workers:
            assert [worker.get(key) for key in keys] == [("a_en.txt", b"one"), ("a_en.txt", b"")]


def test_files_are_forgotten_in_time(
    workers: tuple[FolderDownloads, FolderDownloads], clock: Clock, tmp_path: Path
) -> None:
    one, two = workers
    first = one.put("a.txt", b"one")
    clock.now_s += LIFETIME_S / 2
    second = one.put("a.txt", b"two")
    two.get(second)
    clock.now_s += LIFETIME_S / 2
    with pytest.raises(UnknownRoute):
        two.get(first)
    assert two.get(second)[1] == b"two"
    clock.now_s += LIFETIME_S
    two.forget()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_size_is_of_all_workers(
    workers: tuple[FolderDownloads, FolderDownloads], clock: Clock
) -> None:
    one, two = workers
    with pytest.raises(PayloadTooLarge):
        one.put("a.txt", bytes(101))
    fetched = one.put("a.txt", bytes(60))
    two.get(fetched)
    waiting = two.put("b.txt", bytes(60))  # takes the place of the one that was fetched
    with pytest.raises(UnknownRoute):
        one.get(fetched)
    clock.now_s += 100
    with pytest.raises(Overloaded) as caught:
        one.put("c.txt", bytes(60))
    assert caught.value.retry_after_s == LIFETIME_S - 100
    assert one.get(waiting)[1] == bytes(60)


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "../counts", "a", "A" * 43, f"{'A' * 43}./x", f"{'A' * 43}.a\0", "/etc/passwd"],
)
def test_other_names_are_no_files(
    workers: tuple[FolderDownloads, FolderDownloads], key: str
) -> None:
    with pytest.raises(UnknownRoute):
        workers[0].get(key)


def test_full_disk_is_an_overload(
    workers: tuple[FolderDownloads, FolderDownloads],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Overloaded):
        workers[0].put("a.txt", b"one")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_of_one_key_leave_room_for_those_of_others(
    workers: tuple[FolderDownloads, FolderDownloads], clock: Clock
) -> None:
    one, two = workers
    first = one.put("a.txt", b"a" * 30, "alice")
    clock.now_s += 10
    with pytest.raises(Overloaded) as refused:
        two.put("a.txt", b"a" * 30, "alice")
    assert refused.value.retry_after_s == LIFETIME_S - 10
    bobs = two.put("b.txt", b"b" * 50, "bob")
    assert two.get(first) == ("a.txt", b"a" * 30)
    one.put("a.txt", b"a" * 50, "alice")
    assert one.get(bobs) == ("b.txt", b"b" * 50)
