"""Capacity settings of an engine."""

from __future__ import annotations

import pytest

from inference.engine.scheduler import Capacity
from inference.errors import SetupError
from serving.settings.capacity import CapacitySettings


def test_an_omitted_setting_is_the_engines_default() -> None:
    assert CapacitySettings().capacity() == Capacity()
    assert CapacitySettings().parameters() == {}


def test_every_setting_reaches_the_engine() -> None:
    flags = {
        "max_rows": "4",
        "max_waiting": "9",
        "max_prefill_tokens": "700",
        "max_prefill_tokens_beside": "70",
        "state_memory": "1.5GiB",
        "prefix_memory": "0",
        "draft_tokens": "0",
    }
    assert set(flags) == set(CapacitySettings.model_fields)
    assert CapacitySettings.of(flags).capacity() == Capacity(
        rows=4,
        waiting=9,
        prefill_tokens=700,
        prefill_tokens_beside=70,
        chunk_tokens=70,
        state_bytes=3 << 29,
        prefix_bytes=0,
        draft_tokens=0,
    )


def test_text_for_a_configuration_has_the_same_settings() -> None:
    settings = CapacitySettings.of({"max_rows": "4", "state_memory": "2GiB"})
    assert settings.parameters() == {"max_rows": "4", "state_memory": str(2 << 30)}
    assert CapacitySettings.of(settings.parameters()) == settings


def test_unknown_parameters_are_ignored() -> None:
    assert CapacitySettings.of({"incarnation": "3", "max_rows": "5"}).max_rows == 5


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"max_prefill_tokens": 8}, (8, 8, 8)),
        ({"max_prefill_tokens_beside": 5000}, (5000, 5000, 128)),
        ({"max_prefill_tokens_beside": 1}, (2048, 1, 1)),
    ],
)
def test_one_bound_on_tokens_moves_the_others_as_far_as_needed(
    flags: dict[str, object], found: tuple[int, int, int]
) -> None:
    capacity = CapacitySettings.of(flags).capacity()
    tokens = (capacity.prefill_tokens, capacity.prefill_tokens_beside, capacity.chunk_tokens)
    assert tokens == found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_rows": "0"}, "max_rows is '0'.*greater than or equal to 1"),
        ({"max_waiting": "many"}, "max_waiting is 'many'.*integer"),
        ({"state_memory": "2 apples"}, "state_memory is '2 apples'.*apples"),
        ({"state_memory": "0"}, "state_memory is '0'"),
        ({"prefix_memory": "-1"}, "prefix_memory is '-1'"),
        (
            {"max_prefill_tokens": "5", "max_prefill_tokens_beside": "9"},
            r"^max_prefill_tokens_beside \(9\) must not exceed max_prefill_tokens \(5\)$",
        ),
    ],
)
def test_bad_values_are_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CapacitySettings.of(flags)
