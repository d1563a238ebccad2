"""Special tokens of a checkpoint's tokenizer."""

from __future__ import annotations

import json

from export.tokenizer.tokenizer import _special_id
from export.tokenizer.tokenizer_json import FastTokenizer


def test_a_token_that_nothing_names_has_no_id() -> None:
    """Even where the vocabulary has an empty piece."""
    content = json.dumps({"model": {"vocab": {"": 5, "<s>": 1}}}).encode()
    fast = FastTokenizer(content, {"bos_token": "<s>"})
    assert _special_id("bos_token", {}, fast, {}) == 1
    assert _special_id("pad_token", {}, fast, {}) is None
