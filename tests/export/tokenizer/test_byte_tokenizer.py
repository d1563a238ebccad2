"""Perceiver's tokens are bytes: ids and texts are those of `transformers`' Python tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from transformers import AddedToken, PerceiverTokenizer

from export.checkpoint.checkpoint import open_checkpoint
from export.tokenizer.tokenizer import fast_tokenizer, mask_token
from inference.bundle.inputs import TokenizerSpec
from inference.errors import CheckpointError
from inference.processing.text import FastTokenizer
from tests.export.tokenizer.tiny_tokenizers import CORPUS, write_json

SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")


def exported(folder: Path) -> tuple[TokenizerSpec, FastTokenizer]:
    """The tokenizer of a bundle that was exported from a folder with these settings."""
    if not (folder / "config.json").exists():
        write_json(folder / "config.json", {"model_type": "perceiver"})
    spec, contents = fast_tokenizer(open_checkpoint(str(folder)))
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return spec, FastTokenizer(spec, folder)


def random_text(rng: Random) -> str:
    """Characters of one to four bytes, and special tokens between them."""
    ranges = (1, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)
    signs = [chr(rng.randrange(*between)) for between in ranges]
    return "".join(rng.choices([*signs, " ", "[", *SPECIAL, "[MASK"], k=rng.randrange(12)))


def assert_equal(oracle: Any, ours: FastTokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = oracle(text)["input_ids"]
        assert ours.encode(text) == ids, text
        plain = oracle(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain, text
        for cut in (ids, plain, plain[1:], plain[:-1]):  # in the middle of characters, too
            assert ours.decode(cut) == oracle.decode(cut, skip_special_tokens=True), text
            assert ours.render(cut, skip_special_tokens=False) == oracle.decode(cut), text


def test_ids_and_texts_equal_those_of_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    oracle.save_pretrained(tmp_path)
    spec, ours = exported(tmp_path)
    rng = Random(0)
    assert_equal(oracle, ours, [*CORPUS, *(random_text(rng) for _ in range(500))])
    assert (spec.pad_token_id, spec.bos_token_id, spec.eos_token_id) == (0, 1, 2)
    assert mask_token(open_checkpoint(str(tmp_path))) == ("[MASK]", 3)


def test_pairs_equal_those_of_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    _, ours = exported(tmp_path)
    for first, second in zip(CORPUS, reversed(CORPUS), strict=True):
        want = oracle([(first, second)], return_token_type_ids=True)
        got = ours.encode_text(first, second)
        assert list(got.ids) == want["input_ids"][0], (first, second)
        assert list(got.segments) == want["token_type_ids"][0], (first, second)


def test_any_bytes_are_decoded_as_by_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    _, ours = exported(tmp_path)
    rng = Random(1)
    for _ in range(3000):
        ids = rng.choices(range(6, 262), k=3) + rng.choices(range(134, 262), k=4)
        rng.shuffle(ids)
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True), ids


def test_spaces_are_cleaned_up_where_the_settings_say_so(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer(clean_up_tokenization_spaces=True)
    oracle.save_pretrained(tmp_path)
    _, ours = exported(tmp_path)
    assert ours.decode(ours.encode("it 's fine .")) == "it's fine."
    assert_equal(oracle, ours, ["it 's fine . I 'm , we 're !"])


def test_offsets_are_those_of_the_characters(tmp_path: Path) -> None:
    _, ours = exported(tmp_path)
    offsets = ours.encode_text("aé[MASK]", with_offsets=True).offsets
    assert [tuple(each) for each in offsets[1:-1]] == [(0, 1), (1, 2), (1, 2), (2, 8)]


def test_other_and_further_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer(mask_token="<m>", cls_token=AddedToken("<c>", special=True))
    oracle.add_tokens(["<one>"])
    oracle.add_special_tokens({"additional_special_tokens": ["<two>"]})
    oracle.save_pretrained(tmp_path)
    again = PerceiverTokenizer.from_pretrained(tmp_path)
    _, ours = exported(tmp_path)
    assert again("<one>").input_ids == [4, 262, 5]
    assert_equal(again, ours, ["a<m>b <c><one>x<two>", "[MASK] <one"])
    assert mask_token(open_checkpoint(str(tmp_path))) == ("<m>", 3)


def test_added_tokens_with_a_gap_are_refused(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": "PerceiverTokenizer",
        "added_tokens_decoder": {"270": {"content": "<far>"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"start at 262"):
        exported(tmp_path)
