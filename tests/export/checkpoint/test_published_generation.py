"""Generation parameters as they are published, read as `transformers` reads them.

One line is one checkpoint of the hub: its `generation_config.json`, or the keys of `config.json`
where it was published without one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from inference.bundle.manifest import Limits

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
