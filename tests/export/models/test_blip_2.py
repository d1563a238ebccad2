"""BLIP-2: what its files say and leave out."""

from __future__ import annotations

from typing import Any

import pytest

from export.checkpoint.checkpoint import Checkpoint
from export.models import blip_2
from export.registry import architecture
from inference.errors import CheckpointError
from tests.export.conftest import Twins


def test_published_files_leave_sizes_out() -> None:
    """`config.json` of blip2-opt-2.7b."""
    section = {"model_type": "opt", "hidden_size": 2560, "num_hidden_layers": 32}
    section |= {"ffn_dim": 10240, "num_attention_heads": 32, "word_embed_proj_dim": 2560}
    values: dict[str, Any] = {"text_config": section | {"vocab_size": 50304}}
    values |= {"vision_config": {}, "qformer_config": {}, "image_token_index": 50265}
    config = architecture("blip-2").read_config(values)
    assert (config.image.layers, config.image.width, config.image.positions) == (39, 1408, 257)
    assert (config.qformer.queries, config.qformer.image_width) == (32, 1408)
    assert (config.text.width, config.image_token) == (2560, 50265)


def test_answers_end_where_the_language_model_says(twins: Twins) -> None:
    """`transformers` reads no `generation_config.json` for them."""
    twin = twins("blip-2", "odd")
    text = {**twin.checkpoint.config["text_config"], "eos_token_id": 50118}
    values = {**twin.checkpoint.config, "text_config": text}
    found = blip_2.generation(Checkpoint(twin.checkpoint.folder, "x", values))
    assert (found["eos_token_id"], found["max_new_tokens"]) == (50118, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"text_config": {"model_type": "llama"}}, "'llama'"),
        ({"text_config": {"hidden_size": 8, "word_embed_proj_dim": 4}}, "word_embed_proj_dim = 4"),
        ({"architectures": ["Blip2ForImageTextRetrieval"]}, "Blip2ForImageTextRetrieval"),
    ],
)
def test_what_the_network_lacks_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    declared = architecture("blip-2")
    with pytest.raises(CheckpointError, match=message):
        declared.read_config({**declared.twin.configs["plain"], **change})
