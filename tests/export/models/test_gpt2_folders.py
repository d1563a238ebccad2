"""GPT-2 folders in the layouts of 2019 and of today, tied or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.graphs.source_model import SourceModel
from export.models.decoders.gpt import GPT2
from inference.errors import CheckpointError
from tests.export.oracle import difference
from tests.export.step_calls import teacher_forced
from tests.export.twins import make_twin

WEIGHTS = "model.safetensors"


def _logits(folder: Path) -> torch.Tensor:
    network = SourceModel.open(folder).network
    with torch.no_grad():
        return teacher_forced(GPT2.graphs(network, None), {}, torch.arange(8)[None])[0]


def _twin(folder: Path, config: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The reference's scores, and the tensors that it saved."""
    reference = make_twin("gpt2", config, folder)
    with torch.no_grad():
        return reference(torch.arange(8)[None]).logits, load_file(folder / WEIGHTS)


def _save(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def test_folder_of_2019_has_no_prefix_and_stores_its_masks(tmp_path: Path) -> None:
    want, tensors = _twin(tmp_path, "plain")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert "wte.weight" in bare
    assert "lm_head.weight" not in bare
    mask = torch.ones(32, 32).tril()[None, None]
    bare |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(2)}
    bare |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    _save(tmp_path, bare)
    assert difference(want, _logits(tmp_path)) < 1e-5


def test_tied_head_may_be_stored_again_but_must_be_the_same(tmp_path: Path) -> None:
    want, tensors = _twin(tmp_path, "plain")
    head = tensors["transformer.wte.weight"].clone()
    _save(tmp_path, tensors | {"lm_head.weight": head})
    assert difference(want, _logits(tmp_path)) < 1e-5
    _save(tmp_path, tensors | {"lm_head.weight": head + 1})
    with pytest.raises(CheckpointError, match=r"contradicting: transformer\.wte\.weight"):
        _logits(tmp_path)


def test_head_of_its_own_must_be_there(tmp_path: Path) -> None:
    want, tensors = _twin(tmp_path, "untied")
    assert difference(want, _logits(tmp_path)) < 1e-5
    del tensors["lm_head.weight"]
    _save(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        _logits(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"activation_function": "sine"}, "sine"),
        ({"n_head": 5}, "n_head"),
    ],
)
def test_unsupported_fields_are_refused_by_name(change: dict[str, Any], reason: str) -> None:
    values = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 32}
    values |= {"n_layer": 2, "n_head": 4}
    with pytest.raises(CheckpointError, match=reason):
        GPT2.build(GPT2.read_config(values | change))


def test_prompt_limit_reserves_positions_for_generated_tokens() -> None:
    values = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 32}
    limits = GPT2.read_config(values | {"n_layer": 2, "n_head": 4}).limits
    assert (limits.max_input_tokens, limits.max_total_tokens) == (31, 32)
