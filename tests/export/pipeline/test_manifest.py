"""The manifest refuses defaults that the decoder could not follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from export.pipeline.manifest import Request, build_manifest
from inference.errors import CheckpointError
from tests.export.conftest import pair_of
from tests.export.twins import make_twin


@pytest.mark.parametrize(
    ("name", "value", "token"),
    [
        ("decoder_start_token_id", 64, 64),
        ("decoder_start_token_id", [2, -1], -1),
        ("forced_bos_token_id", 64, 64),
        ("forced_eos_token_id", -1, -1),
        ("sequence_bias", [[[64], 1.0]], 64),
    ],
)
def test_default_token_outside_the_vocabulary_is_refused_by_name(
    name: str, value: Any, token: int, tmp_path: Path
) -> None:
    pair = pair_of("bart", "odd", tmp_path, make_twin("bart", "odd", tmp_path))
    values = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 2, name: value}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    message = f"generation default {name} = {token} is outside the vocabulary of 64 tokens"
    with pytest.raises(CheckpointError, match=message):
        build_manifest(Request("twin"), 1, pair.source, pair.graphs())
