"""Checkpoints of generators: configurations, folders, generation parameters.

One line is one checkpoint of the hub: its `generation_config.json`, or the keys of `config.json`
where it was published without one.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from export.graphs.source_model import SourceModel
from export.layers.attention.rotary import Rotary
from export.registry import architecture
from export.tokenizer.tokenizer import fast_tokenizer
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError
from tests.export.oracle import difference
from tests.export.step_calls import teacher_forced
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin, twin_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.8, 2.5],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 9.0],
}
SCALED: dict[str, dict[str, Any]] = {
    "default": {},
    "base": {"rope_theta": 500000.0},
    "Llama 3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "linear, as it was first written": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "Qwen2.5's YaRN": {"rope_theta": 1000000.0, "rope_scaling": YARN | {"type": "yarn"}},
    "YaRN of all positions": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "YaRN with its own ramp": {
        "rope_scaling": YARN
        | {"rope_type": "yarn", "beta_fast": 2.0, "beta_slow": 0.3, "truncate": False}
    },
    "YaRN with an amplitude": {
        "rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 0.7, "beta_fast": None}
    },
    "YaRN with DeepSeek's weights": {
        "rope_scaling": YARN | {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.2}
    },
    "YaRN without a ramp": {
        "rope_scaling": YARN | {"rope_type": "yarn", "beta_fast": 9.0, "beta_slow": 9.0}
    },
    "LongRoPE": {"rope_scaling": LONGROPE | {"factor": 4.0}},
    "LongRoPE with an amplitude": {
        "rope_scaling": LONGROPE | {"rope_type": "longrope", "attention_factor": 1.3}
    },
    "Phi-3's place for the trained positions": {
        "original_max_position_embeddings": 4,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0},
    },
}


def _values(name: str) -> dict[str, Any]:
    """A configuration as of a checkpoint saved with `transformers` 4: no `rope_parameters`."""
    values = {"model_type": name, **twin_of(name).configs[EXPORTED]}
    values.pop("rope_parameters", None)
    return values


def _rotary(name: str, values: dict[str, Any], layer: int = 0) -> Rotary:
    rotary = architecture(name).read_config(values).layers[layer].rotary
    assert isinstance(rotary, Rotary)
    return rotary


def _tables(cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Of `transformers`, which repeats each half: (2, positions, w / 2)."""
    width = cosine.shape[-1] // 2
    return torch.stack([cosine[0, :, :width], sine[0, :, :width]])


@pytest.mark.parametrize("case", SCALED)
def test_older_rope_fields_mean_what_transformers_reads(case: str) -> None:
    values = _values("llama") | deepcopy(SCALED[case])  # `transformers` writes into it
    ours = _rotary("llama", values)
    config = transformers.LlamaConfig(**{k: v for k, v in values.items() if k != "model_type"})
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(32)[None])
    assert ours.positions == 32
    assert torch.allclose(_tables(*theirs), torch.stack(ours.tables), atol=1e-6)


def test_longrope_is_served_up_to_the_trained_length() -> None:
    values = _values("llama") | {"max_position_embeddings": 64, "rope_scaling": deepcopy(LONGROPE)}
    values["original_max_position_embeddings"] = 16
    config = architecture("llama").read_config(values)
    assert config.limits.max_total_tokens == 16
    ours = _rotary("llama", values)
    theirs = LlamaRotaryEmbedding(
        transformers.LlamaConfig(**{k: v for k, v in values.items() if k != "model_type"})
    )
    short, long = (
        _tables(*theirs(torch.zeros(1), torch.arange(length)[None])) for length in (16, 17)
    )
    assert torch.allclose(short, torch.stack(ours.tables), atol=1e-6)
    assert not torch.allclose(long[:, :16], short, atol=1e-2)


def test_yarn_is_neither_plain_nor_linear() -> None:
    values = _values("llama") | {"rope_scaling": YARN | {"rope_type": "yarn", "beta_slow": 0.1}}
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01])
    ratios = (_rotary("llama", values).scaling(frequencies) / frequencies).tolist()
    assert ratios[0] == 1.0
    assert ratios[-1] == 0.25
    assert any(0.25 < ratio < 1 for ratio in ratios)


@pytest.mark.parametrize("case", ["Llama 3", "linear", "default"])
def test_gemma_3_rotates_by_two_bases_in_older_fields(case: str) -> None:
    values = _values("gemma3_text") | deepcopy(SCALED[case]) | {"rope_local_base_freq": 77.0}
    ours = [_rotary("gemma3_text", values, layer) for layer in range(2)]
    config = transformers.Gemma3TextConfig(**{k: v for k, v in values.items() if k != "model_type"})
    rotary = Gemma3RotaryEmbedding(config)
    for one, kind in zip(ours, values["layer_types"], strict=True):
        theirs = rotary(torch.zeros(1), torch.arange(32)[None], kind)
        assert torch.allclose(_tables(*theirs), torch.stack(one.tables), atol=1e-6), kind


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "factor is missing"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "factor must be a number"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "short_factor must be a list"),
    ("llama", {"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor needs 5 numbers"),
    ("llama", {"rope_scaling": {"rope_type": "proportional"}}, "rope_type = 'proportional'"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"num_key_value_heads": 4}, "num_key_value_heads = 4"),
    ("llama", {"hidden_act": "sine"}, "'sine'"),
    ("llama", {"head_dim": 9}, "width 9"),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (
        "gemma3_text",
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": None},
        "rope_scaling needs rope_type",
    ),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("opt", {"num_attention_heads": 7}, "num_attention_heads"),
    ("gpt_neo", {"attention_types": [[["global", "sparse"], 1]]}, "attention_types"),
    ("gpt_neo", {"attention_types": [[["global"], 1]]}, "attention_types"),
    ("gpt_neo", {"attention_types": [[["global"], 2**31], [[], 2**31]]}, "attention_types"),
    (
        "gpt_neo",
        {"attention_types": [[["global"], 2**31]], "attention_layers": ["global"] * 2},
        "attention_types",
    ),
    ("openai-gpt", {"afn": "tanh"}, "afn = 'tanh'"),
]


@pytest.mark.parametrize(("name", "change", "reason"), REFUSED)
def test_unsupported_fields_are_refused_by_name(
    name: str, change: dict[str, Any], reason: str
) -> None:
    values = _values("llama" if name == "mistral" else name) | {"model_type": name}
    with pytest.raises(CheckpointError, match=reason):
        architecture(name).build(architecture(name).read_config(values | change))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "opt", "gpt_neo", "openai-gpt"])
def test_prompt_limit_reserves_a_position_for_the_answer(name: str) -> None:
    limits = architecture(name).read_config(_values(name)).limits
    assert (limits.max_input_tokens, limits.max_total_tokens) == (31, 32)


TOKENS = torch.arange(3, 11)[None]


def _logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return teacher_forced(SourceModel.open(folder).graphs(), {}, TOKENS)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_half_precision_in_shards_computes_what_transformers_computes_in_float32(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = make_twin(name, "odd", tmp_path / "whole").to(dtype)
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=torch.float32)
    with torch.no_grad():
        want = reference(TOKENS).logits
    assert difference(want, _logits(tmp_path / "shards")) < 1e-5


def test_several_end_tokens_are_all_kept_and_the_first_one_pads(tmp_path: Path) -> None:
    make_twin("llama", "biased", tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}}))
    checkpoint = open_checkpoint(str(tmp_path))
    rules, warnings = generation_defaults(checkpoint, Limits(), has_source=False)
    assert rules.eos_token_ids == (2, 3)
    assert rules.pad_token_id == 2
    assert warnings == []
    spec, _ = fast_tokenizer(checkpoint)
    assert (spec.pad_token_id, spec.eos_token_id) == (2, 2)


def test_sampling_of_a_generation_config_is_the_default(tmp_path: Path) -> None:
    make_twin("llama", "plain", tmp_path)
    values = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [5, 6, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    rules, warnings = generation_defaults(
        open_checkpoint(str(tmp_path)), Limits(), has_source=False
    )
    assert (rules.do_sample, rules.temperature, rules.top_p) == (True, 0.6, 0.9)
    assert rules.eos_token_ids == (5, 6, 7)
    assert warnings == []


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


OF_2020 = {
    "num_beams": 1, "do_sample": False, "early_stopping": False, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "repetition_penalty": 1.0, "bad_words_ids": None, "num_beam_groups": 1, "typical_p": 1.0,
    "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "forced_bos_token_id": None,
    "pad_token_id": None, "eos_token_id": None, "bos_token_id": None, "suppress_tokens": None,
}  # fmt: skip
"""What `transformers` 4 wrote into every section of `config.json`."""
GPT2 = {"bos_token_id": 50256, "eos_token_id": 50256}
SEQ2SEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
IN_CONFIG: dict[str, dict[str, Any]] = {
    "openai-community/gpt2": {"model_type": "gpt2", **GPT2, "task_specific_params": {
        "text-generation": {"do_sample": True, "max_length": 50}}},
    "EleutherAI/gpt-neo-125m": {"model_type": "gpt_neo", **GPT2},
    "facebook/opt-125m": {"model_type": "opt", "prefix": "</s>", "pad_token_id": 1,
                          "bos_token_id": 2, "eos_token_id": 2},
    "google-t5/t5-small": {"model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 1,
                           "pad_token_id": 0, "task_specific_params": {"summarization": {
                               "num_beams": 4, "prefix": "summarize: ", "max_length": 200}}},
    "facebook/bart-large-cnn": {
        "model_type": "bart", **SEQ2SEQ, "force_bos_token_to_be_generated": True,
        "forced_bos_token_id": 0, "forced_eos_token_id": 2, "num_beams": 4, "min_length": 56,
        "max_length": 142, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "prefix": " ",
        "early_stopping": True, "task_specific_params": {"summarization": {"num_beams": 6}}},
    "facebook/bart-base": {"model_type": "bart", **SEQ2SEQ, "early_stopping": True, "num_beams": 4,
                           "no_repeat_ngram_size": 3},
    "google/pegasus-xsum": {
        "model_type": "pegasus", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
        "decoder_start_token_id": 0, "forced_eos_token_id": 1, "length_penalty": 0.6,
        "max_length": 64, "num_beams": 8},
    "facebook/mbart-large-50-many-to-many-mmt": {
        "model_type": "mbart", **SEQ2SEQ, "early_stopping": True, "forced_eos_token_id": 2,
        "max_length": 200, "num_beams": 5},
    "facebook/m2m100_418M": {"model_type": "m2m_100", **SEQ2SEQ, "early_stopping": True,
                             "max_length": 200, "num_beams": 5},
    "Helsinki-NLP/opus-mt-es-en": {
        "model_type": "marian", "bad_words_ids": [[65000]], "bos_token_id": 0, "eos_token_id": 0,
        "pad_token_id": 65000, "decoder_start_token_id": 65000, "forced_eos_token_id": 0,
        "max_length": 512, "num_beams": 4},
    "nlpconnect/vit-gpt2-image-captioning": {
        "model_type": "vision-encoder-decoder", **GPT2, "pad_token_id": 50256,
        "decoder_start_token_id": 50256, "encoder": {"model_type": "vit", **OF_2020},
        "decoder": {"model_type": "gpt2", **OF_2020, **GPT2, "task_specific_params": {
            "text-generation": {"do_sample": True, "max_length": 50}}}},
    "microsoft/trocr-base-printed": {
        "model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit", **OF_2020},
        "decoder": {"model_type": "trocr", **OF_2020, **SEQ2SEQ}},
    "microsoft/git-base-coco": {"model_type": "git", **OF_2020, "bos_token_id": 101,
                                "eos_token_id": 102, "pad_token_id": 0, "num_beams": 1},
}  # fmt: skip
IN_FILE: dict[str, dict[str, Any]] = {
    "google/gemma-3-270m-it": {
        "cache_implementation": "hybrid", "do_sample": True, "eos_token_id": [1, 106],
        "top_k": 64, "top_p": 0.95},
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "top_p": 0.8,
        "eos_token_id": [151645, 151643], "repetition_penalty": 1.1, "temperature": 0.7,
        "top_k": 20},
    "Qwen/Qwen3-0.6B": {
        "bos_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643],
        "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "meta-llama/Llama-3.2-1B": {
        "_from_model_config": True, "bos_token_id": 128000, "do_sample": True,
        "eos_token_id": 128001, "temperature": 0.6, "top_p": 0.9},
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {"bos_token_id": 1, "eos_token_id": 2,
                                           "max_length": 2048, "pad_token_id": 0},
    "openai-community/openai-gpt": {"_from_model_config": True},
    "Helsinki-NLP/opus-mt-en-de": {
        "_from_model_config": True, "bad_words_ids": [[58100]], "bos_token_id": 0,
        "decoder_start_token_id": 58100, "eos_token_id": 0, "forced_eos_token_id": 0,
        "max_length": 512, "num_beams": 6, "pad_token_id": 58100, "renormalize_logits": True},
    "google/mt5-small": {"_from_model_config": True, "decoder_start_token_id": 0,
                         "eos_token_id": 1, "pad_token_id": 0},
}  # fmt: skip
SAMPLED = ("num_beams", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty",
           "no_repeat_ngram_size", "length_penalty", "early_stopping", "forced_bos_token_id",
           "forced_eos_token_id")  # fmt: skip
HAS_SOURCE = ("t5", "mt5", "bart", "pegasus", "mbart", "m2m", "opus", "vit-gpt2", "trocr")


def published(name: str, folder: Path) -> GenerationConfig:
    """Writes the line's files; returns what `transformers` makes of them."""
    config = IN_CONFIG.get(name, {"model_type": "llama"})
    (folder / "config.json").write_text(json.dumps(config))
    if name in IN_FILE:
        (folder / "generation_config.json").write_text(json.dumps(IN_FILE[name]))
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_pretrained(  # as `GenerationMixin.adjust_generation_fn` does
        folder, config_file_name="config.json", _from_model_config=True
    )


@pytest.mark.parametrize("name", [*IN_CONFIG, *IN_FILE])
def test_published_generation_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = published(name, tmp_path)
    has_source = name.partition("/")[2].startswith(HAS_SOURCE)
    limits = Limits(max_total_tokens=4096)
    checkpoint = open_checkpoint(str(tmp_path))
    ours, warnings = generation_defaults(checkpoint, limits, has_source=has_source)
    assert warnings == []
    ends = theirs.eos_token_id
    assert list(ours.eos_token_ids) == (
        [] if ends is None else ends if isinstance(ends, list) else [ends]
    )
    if theirs.pad_token_id is not None:
        assert ours.pad_token_id == theirs.pad_token_id
    if has_source:
        start = theirs.decoder_start_token_id
        assert ours.decoder_start_ids == ((theirs.bos_token_id,) if start is None else (start,))
        assert ours.min_new_tokens == max(0, (theirs.min_length or 0) - 1)
    assert [list(words) for words in ours.bad_words_ids] == (theirs.bad_words_ids or [])
    if theirs.max_length is not None:
        assert ours.max_new_tokens == theirs.max_length - 1
    for field in SAMPLED:
        wanted = getattr(theirs, field)
        if wanted is not None and (ours.do_sample or not field.startswith(("top_", "temp"))):
            assert getattr(ours, field) == wanted, field
