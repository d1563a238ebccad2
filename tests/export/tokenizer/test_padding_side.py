"""Texts that are padded to one length have the ids of the folder's `AutoTokenizer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)

from export.checkpoint.checkpoint import open_checkpoint
from export.tokenizer.tokenizer import fast_tokenizer
from inference.errors import CheckpointError
from inference.tasks.shared.length_buckets import Padding

WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>", "</s>", "<0x00>", "▁", "a", "b"]
VOCABULARY = {word: number for number, word in enumerate(WORDS)}
WIDTH = 8


def folder_of(name: str, folder: Path, **settings: Any) -> Path:
    """A tokenizer of that class, whose settings leave out what `settings` does not say."""
    getattr(transformers, name)(vocab=VOCABULARY, merges=[]).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text())
    saved.pop("padding_side", None)
    path.write_text(json.dumps(saved | {"pad_token": "<pad>"} | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "siglip"}))
    return folder


@pytest.mark.parametrize("settings", [{}, {"padding_side": "right"}, {"padding_side": "left"}])
@pytest.mark.parametrize("name", ["Siglip2Tokenizer", "GemmaTokenizer", "GPT2Tokenizer"])
def test_padding_is_where_the_automatic_tokenizer_puts_it(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    folder = folder_of(name, tmp_path, **settings)
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    spec, _ = fast_tokenizer(open_checkpoint(str(folder)))
    assert spec.padding_side == theirs.padding_side
    own = theirs("ab").input_ids
    padding = Padding(spec.pad_token_id, WIDTH, is_left=spec.padding_side == "left")
    wanted = theirs("ab", padding="max_length", max_length=WIDTH).input_ids
    assert padding.padded([own], WIDTH).tolist() == [wanted]
    assert settings or spec.padding_side == ("right" if name == "GPT2Tokenizer" else "left")


def test_other_defaults_of_classes_are_those_that_were_looked_at() -> None:
    """A class that truncates on the left would be read otherwise; texts are refused, not cut."""
    names = sorted(filter(None, TOKENIZER_MAPPING_NAMES.values()))
    found = map(tokenizer_class_from_name, names)
    classes = [each for each in found if hasattr(each, "truncation_side")]  # not pairs of them
    assert len(classes) > 50
    assert {each.truncation_side for each in classes} == {"right"}
    assert {each.padding_side for each in classes} == {"right", "left"}


def test_padding_on_no_side_is_refused(tmp_path: Path) -> None:
    folder = folder_of("Siglip2Tokenizer", tmp_path, padding_side="both")
    with pytest.raises(CheckpointError, match="padding_side must be left or right, not 'both'"):
        fast_tokenizer(open_checkpoint(str(folder)))
