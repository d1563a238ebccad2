"""The garbage collector while a program starts."""

from __future__ import annotations

import gc

import pytest

from triptych.garbage import without_collection


def test_objects_made_inside_are_kept_and_later_ones_are_collected() -> None:
    frozen, kept = gc.get_freeze_count(), []

    def load() -> None:
        assert not gc.isenabled()
        kept.extend([number] for number in range(1000))
        raise KeyError

    with pytest.raises(KeyError), without_collection():
        load()
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + 1000
