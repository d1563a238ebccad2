"""Segments of single texts: what the tokenizer marks and the graphs read."""

from __future__ import annotations

from torch import nn

from export.text_encoders.network import TextModel
from export.tokenizer.tokenizer import TokenizerFiles, marks_single_texts
from inference.errors import CheckpointError


def check_segments(network: nn.Module, files: TokenizerFiles) -> None:
    """Segments are an input of graphs for single texts only where the network needs them.

    Raises:
        CheckpointError: the tokenizer puts tokens of a single text into a segment other than 0,
            which `transformers` would pass to the network.
    """
    if not isinstance(network, TextModel) or network.encoder.marks_single_texts:
        return
    if network.encoder.segment_types > 1 and marks_single_texts(files):
        raise CheckpointError(
            "the tokenizer puts tokens of a single text into a segment other than 0, which only "
            "XLNet's graphs read: change the type ids of the post-processor in tokenizer.json"
        )
