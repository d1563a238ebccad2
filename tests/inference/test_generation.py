"""Defaults of a checkpoint with a request's overrides."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from inference.generation import Generation, Overrides

RULES = Generation(pad_token_id=0, max_new_tokens=20, num_beams=4, eos_token_ids=(1,))


def test_overrides_change_only_what_they_name() -> None:
    changed = RULES.with_overrides(Overrides(num_beams=2, deadline_ms=5, stream=True))
    assert changed == RULES.model_copy(update={"num_beams": 2})


def test_a_request_may_be_longer_than_the_default() -> None:
    for requested in (5, 500):
        assert RULES.with_overrides(Overrides(max_new_tokens=requested)).max_new_tokens == requested


def test_more_hypotheses_than_beams_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_return_sequences"):
        RULES.with_overrides(Overrides(num_return_sequences=5))


def test_sampling_and_beams_replace_each_other() -> None:
    sampling = RULES.with_overrides(Overrides(do_sample=True, num_return_sequences=3))
    assert (sampling.num_beams, sampling.rows) == (1, 3)
    assert not sampling.with_overrides(Overrides(num_beams=2, num_return_sequences=1)).do_sample
    with pytest.raises(ValidationError, match="mutually exclusive"):
        RULES.with_overrides(Overrides(do_sample=True, num_beams=2))


@pytest.mark.parametrize("length_penalty", [float("nan"), float("inf"), 11.0])
def test_length_penalty_must_be_a_number_in_range(length_penalty: float) -> None:
    with pytest.raises(ValidationError, match="length_penalty"):
        Overrides(length_penalty=length_penalty)


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        Overrides.model_validate({"temprature": 1})
