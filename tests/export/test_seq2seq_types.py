"""Every `model_type` of `AutoModelForSeq2SeqLM` is exported, or the page has why it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from export.registry import ARCHITECTURES, architecture
from inference.errors import CheckpointError

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
TYPES = set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
SERVED = TYPES & ARCHITECTURES.keys()


def _section(title: str) -> str:
    """The part of the page under a heading."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def _named(header: str) -> list[str]:
    """`model_type`s of the first column of the table that begins with a header."""
    rows = _section("Encoder-decoders").partition(f"| `model_type` | {header} |")[2].splitlines()
    table = rows[2 : next(n for n, row in enumerate(rows) if n and not row.startswith("|"))]
    return [name for row in table for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_every_type_is_in_one_of_the_two_tables() -> None:
    refused = _named("why it is refused")
    assert len(refused) == len(set(refused))
    assert set(refused) == TYPES - SERVED
    assert set(_named("tasks | examples | paper")) >= SERVED


@pytest.mark.parametrize("model_type", sorted(TYPES - SERVED))
def test_refusal_names_the_type(model_type: str) -> None:
    with pytest.raises(CheckpointError, match=f"^model_type '{model_type}' is not supported"):
        architecture(model_type)
