"""Segments of pairs are sent where `transformers` would send them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from export.checkpoint.checkpoint import Checkpoint
from export.tokenizer.tokenizer import fast_tokenizer
from tests.export.tokenizer.tiny_tokenizers import write_folder

NAMES = ["input_ids", "attention_mask"]


@pytest.mark.parametrize("names", [None, [*NAMES, "token_type_ids"], NAMES])
def test_segments_of_a_pair_are_those_of_transformers(
    names: list[str] | None, tmp_path: Path
) -> None:
    write_folder("bert-uncased", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | ({} if names is None else {"model_input_names": names})))
    reference = AutoTokenizer.from_pretrained(str(tmp_path), trust_remote_code=False)
    wanted = reference("the dog", "a cat")
    _, files = fast_tokenizer(Checkpoint(tmp_path, "pair", {"model_type": "bert"}))
    found = Tokenizer.from_str(files["tokenizer.json"].decode()).encode("the dog", "a cat")
    assert found.ids == wanted["input_ids"]
    assert found.type_ids == wanted.get("token_type_ids", [0] * len(found.ids))
    assert any(found.type_ids) == (names != NAMES)
