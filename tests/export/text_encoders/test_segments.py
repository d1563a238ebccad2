"""Tokenizers that mark tokens of single texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.text_encoders.network import check_segments
from inference.errors import CheckpointError
from tests.export.twins import build
from tests.inference.processing.tokenizer_files import trained


def files(kind: str, folder: Path) -> dict[str, bytes]:
    trained(kind, folder)
    return {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_a_segment_that_no_graph_reads_is_refused(name: str, tmp_path: Path) -> None:
    _, network = build(name)
    check_segments(network, files("word pieces", tmp_path))
    with pytest.raises(CheckpointError, match="segment other than 0"):
        check_segments(network, files("unigram", tmp_path))


def test_what_reads_segments_or_has_none_takes_any_tokenizer(tmp_path: Path) -> None:
    for name in ("xlnet", "distilbert"):
        _, network = build(name)
        check_segments(network, files("unigram", tmp_path))
