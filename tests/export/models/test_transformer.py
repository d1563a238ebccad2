"""The original Transformer's sizes; its outputs are held to `torch.nn` by `test_twins.py`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from export.models.encoder_decoders.transformer import Transformer, read_config

BIG = {"d_model": 1024, "nhead": 16, "dim_feedforward": 4096}


@pytest.mark.parametrize(("sizes", "millions"), [({}, 65), (BIG, 213)])
def test_parameters_are_those_of_the_papers_table(sizes: Mapping[str, int], millions: int) -> None:
    """Table 3 of the paper, with its shared vocabulary of 37 000 tokens (§5.1)."""
    config = read_config({"vocab_size": 37_000, "max_positions": 512, **sizes})
    with torch.device("meta"):
        network = Transformer(config)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.04)
