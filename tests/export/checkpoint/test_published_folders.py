"""Folders with the special tokens that are in published files, not those of the twins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from export.graphs.source_model import SourceModel
from export.registry import architecture
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED

IDS = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")


def published(folder: Path, name: str, twins: Twins, **settings: object) -> Checkpoint:
    """A twin's folder without special tokens in its files, but the given ones."""
    copied = folder / name
    shutil.copytree(twins(name, EXPORTED).checkpoint.folder, copied)
    config = json.loads((copied / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in IDS}
    (copied / "config.json").write_text(json.dumps(kept))
    (copied / "generation_config.json").write_text('{"_from_model_config": true}')
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    model = BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>")
    Tokenizer(model).save(str(copied / "tokenizer.json"))
    return open_checkpoint(str(copied))


def test_gpt1_without_padding_and_end_token_is_accepted(tmp_path: Path, twins: Twins) -> None:
    """`openai-community/openai-gpt` names neither in any of its files."""
    checkpoint = published(tmp_path, "openai-gpt", twins, model_max_length=512)
    prepared = SourceModel(checkpoint, architecture("openai-gpt")).preprocessing
    assert prepared.tokenizer.eos_token_id is None
    rules, warnings = generation_defaults(checkpoint, Limits(max_total_tokens=64), has_source=False)
    assert (rules.pad_token_id, rules.eos_token_ids, warnings) == (0, (), [])


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_padding_token_of_a_model_with_a_source_is_required(
    name: str, tmp_path: Path, twins: Twins
) -> None:
    checkpoint = published(tmp_path, name, twins)
    with pytest.raises(CheckpointError, match="pad_token_id"):
        generation_defaults(checkpoint, Limits(max_total_tokens=64), has_source=True)
