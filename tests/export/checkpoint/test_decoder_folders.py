"""Folders of decoder-only models as they are published: bfloat16, in shards, with end tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from export.graphs.source_model import SourceModel
from export.tokenizer.tokenizer import fast_tokenizer
from inference.bundle.manifest import Limits
from tests.export.oracle import difference
from tests.export.step_calls import teacher_forced
from tests.export.twins import make_twin

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
