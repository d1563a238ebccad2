"""Generation defaults: their sources, and which values are refused or only warned about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

OPUS = {  # the generation keys of a real opus-mt config.json
    "bad_words_ids": [[58100]],
    "bos_token_id": 0,
    "decoder_start_token_id": 58100,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "max_length": 512,
    "num_beams": 6,
    "pad_token_id": 58100,
}


def _defaults(tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None = None):
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return generation_defaults(Checkpoint(tmp_path, "x", config), Limits(max_total_tokens=512))


def test_old_checkpoints_keep_their_defaults_in_config_json(tmp_path: Path) -> None:
    rules, warnings = _defaults(tmp_path, OPUS)
    assert rules.decoder_start_ids == (58100,)
    assert rules.eos_token_ids == (0,)
    assert rules.bad_words_ids == ((58100,),)
    assert rules.forced_eos_token_id == 0
    assert rules.num_beams == 6
    assert rules.max_new_tokens == 511  # max_length counts the start token
    assert warnings == []


def test_generation_config_wins_over_config_json(tmp_path: Path) -> None:
    rules, _ = _defaults(tmp_path, OPUS, OPUS | {"num_beams": 2, "bad_words_ids": None})
    assert rules.num_beams == 2
    assert rules.bad_words_ids == ()


def test_decoder_section_fills_fields_missing_at_the_top(tmp_path: Path) -> None:
    config = {
        "decoder_start_token_id": None,
        "decoder": {"bos_token_id": 7, "eos_token_id": [3, 4]},
    }
    rules, _ = _defaults(tmp_path, config)
    assert rules.decoder_start_ids == (7,)
    assert rules.eos_token_ids == (3, 4)
    assert rules.pad_token_id == 3


def test_length_never_goes_beyond_the_positions(tmp_path: Path) -> None:
    rules, _ = _defaults(tmp_path, OPUS | {"max_length": 9999})
    assert rules.max_new_tokens == 511
    rules, _ = _defaults(tmp_path, OPUS | {"max_new_tokens": 20})
    assert rules.max_new_tokens == 20


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        ({"encoder_repetition_penalty": 1.3}, "encoder_repetition_penalty=1.3"),
        ({"do_sample": True}, "do_sample=True together with beams"),
        ({"sequence_bias": [[[5, 6], 1.0]]}, "sequence_bias of several tokens"),
        ({"eta_cutoff": 0.1}, "eta_cutoff=0.1"),
    ],
)
def test_unsupported_options_are_warned_about(
    tmp_path: Path, parameters: dict[str, Any], warning: str
) -> None:
    _, warnings = _defaults(tmp_path, OPUS | parameters)
    assert len(warnings) == 1
    assert warning in warnings[0]


def test_sampling_and_penalties_are_honoured(tmp_path: Path) -> None:
    parameters = {
        "do_sample": True, "num_beams": 1, "temperature": 0.7, "top_p": 0.9, "typical_p": 0.8,
        "min_p": 0.05, "top_k": 30, "repetition_penalty": 1.3, "min_length": 4,
        "sequence_bias": [[[5], -2.0]], "renormalize_logits": True, "no_repeat_ngram_size": 2,
    }  # fmt: skip
    rules, warnings = _defaults(tmp_path, OPUS | parameters)
    assert warnings == []
    assert rules.do_sample
    assert (rules.temperature, rules.top_k, rules.top_p) == (0.7, 30, 0.9)
    assert (rules.typical_p, rules.min_p) == (0.8, 0.05)
    assert rules.repetition_penalty == 1.3
    assert rules.min_new_tokens == 3  # min_length counts the start token
    assert rules.logit_bias == {5: -2.0}


def test_top_k_is_that_of_transformers_where_a_file_samples_without(tmp_path: Path) -> None:
    """`transformers` fills top_k=50 in, also for a null; 0 keeps all."""
    plain, sampling = {"num_beams": 1}, {"num_beams": 1, "do_sample": True}
    theirs = GenerationConfig._get_default_generation_params()
    assert _defaults(tmp_path, OPUS | plain)[0].top_k == 0
    assert _defaults(tmp_path, OPUS | sampling)[0].top_k == theirs["top_k"]
    assert _defaults(tmp_path, OPUS | sampling | {"top_k": None})[0].top_k == theirs["top_k"]
    assert _defaults(tmp_path, OPUS | sampling | {"top_k": 0})[0].top_k == 0


def test_beams_win_over_sampling(tmp_path: Path) -> None:
    rules, _ = _defaults(tmp_path, OPUS | {"do_sample": True})
    assert rules.num_beams == 6
    assert not rules.do_sample


def test_min_length_of_a_prompt_is_not_a_number_of_new_tokens(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "x", {"eos_token_id": 1, "min_length": 10})
    rules, warnings = generation_defaults(checkpoint, Limits(), has_source=False)
    assert rules.min_new_tokens == 0
    assert len(warnings) == 1
    assert "min_length=10" in warnings[0]


def test_neutral_values_are_no_warning(tmp_path: Path) -> None:
    neutral = {"do_sample": False, "repetition_penalty": 1.0, "min_length": 0, "temperature": 1.0}
    assert _defaults(tmp_path, OPUS | neutral)[1] == []


def test_ban_on_the_end_token_is_dropped(tmp_path: Path) -> None:
    rules, _ = _defaults(tmp_path, OPUS | {"bad_words_ids": [[0], [5, 6]]})
    assert rules.bad_words_ids == ((5, 6),)


def test_nowhere_to_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="decoder_start_token_id"):
        _defaults(tmp_path, {"eos_token_id": 1})


def test_impossible_value_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_beams = 400"):
        _defaults(tmp_path, OPUS | {"num_beams": 400})


def test_checkpoint_without_an_end_is_warned_about(tmp_path: Path) -> None:
    given = {name: value for name, value in OPUS.items() if name != "eos_token_id"}
    _, warnings = _defaults(tmp_path, given)
    assert warnings == [
        "the checkpoint gives no eos_token_id: no answer ends before its longest length"
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", "many"),
        ("max_length", [20]),
        ("min_new_tokens", {}),
        ("min_length", "few"),
        ("suppress_tokens", 5),
        ("bad_words_ids", [5]),
        ("sequence_bias", [5]),
        ("sequence_bias", [[[5], "much"]]),
    ],
)
def test_value_of_another_kind_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"generation default {name}[\w.]* = "):
        _defaults(tmp_path, OPUS | {name: value})


def test_decoder_only_models_start_from_the_prompt_alone(tmp_path: Path) -> None:
    values = {"bos_token_id": 1, "eos_token_id": 1, "max_length": 50}
    checkpoint = Checkpoint(tmp_path, "x", values)
    rules, _ = generation_defaults(checkpoint, Limits(max_total_tokens=32), has_source=False)
    assert rules.decoder_start_ids == ()
    assert rules.pad_token_id == 1
    assert rules.max_new_tokens == 31


def test_language_models_that_name_no_length_get_a_modest_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "x", {"bos_token_id": 1, "eos_token_id": 1})
    for positions, given in ((1024, 256), (32, 31)):
        limits = Limits(max_total_tokens=positions)
        rules, _ = generation_defaults(checkpoint, limits, has_source=False)
        assert rules.max_new_tokens == given
